// The numbers of a step's record, each described once: JSON, CSV, the reader, Prometheus, sums and
// the page read these lists.
#pragma once

#include <array>

#include "millrace/training/records.hpp"

namespace millrace {

/// Seconds of a rank by cause.
template <class Times>
struct CauseField {
  const char* key;     ///< in JSON and CSV
  const char* cause;   ///< the label in Prometheus, and the title on the page
  const char* colour;  ///< on the page; null: not shown there
  double Times::*seconds;
};

inline constexpr auto kRankTimes = std::to_array<CauseField<RankTimes>>(
    {{"compute", "compute", "#2e7d32", &RankTimes::compute},
     {"wait", "wait", "#b0bec5", &RankTimes::wait},
     {"transfer", "transfer", nullptr, &RankTimes::transfer},
     {"data", "data", "#6d4c41", &RankTimes::data},
     {"optimizer", "optimizer", "#00897b", &RankTimes::optimizer},
     {"save", "save", "#3949ab", &RankTimes::save},
     {"other", "other", "#757575", &RankTimes::other}});

inline constexpr auto kBubble =
    std::to_array<CauseField<Bubble>>({{"warm_up", "warm-up", "#90caf9", &Bubble::warm_up},
                                       {"drain", "drain", "#42a5f5", &Bubble::drain},
                                       {"imbalance", "imbalance", "#ef6c00", &Bubble::imbalance},
                                       {"dependency", "dependency", "#ffb74d", &Bubble::dependency},
                                       {"transfer", "transfer", "#8e24aa", &Bubble::transfer},
                                       {"delay", "delay", "#c62828", &Bubble::delay}});

/// One number of the step.
struct StepField {
  const char* name;              ///< in JSON and CSV
  const char* help = nullptr;    ///< of its gauge in Prometheus; null: it has none
  const char* metric = nullptr;  ///< the gauge; null: as `name`
};

/// visit(field, value) for the numbers that locate a step in its training.
template <class Record, class Visit>
void for_each_count(Record& record, const Visit& visit) {
  visit({"step", "Mini-batches run in this training."}, record.step);
  visit({"update", "Updates done in this training."}, record.report.global_step);
  visit({"epoch", "Epoch of the last step, from 0."}, record.report.epoch);
  visit({"batch"}, record.report.batch);
  visit({"samples"}, record.report.samples);
}

/// visit(field, value) for the results of a step. A value that is computed is not an lvalue.
template <class Record, class Visit>
void for_each_result(Record& record, const Visit& visit) {
  auto& report = record.report;
  visit({"loss", "Mean loss of the last step."}, report.mean_loss());
  visit({"gradient_norm", "Before clipping, of the last step."}, report.gradient_norm);
  visit({"clip_factor", "What the last gradient was multiplied by."}, report.clip_factor);
  visit({"loss_scale", "Of the last step."}, report.loss_scale);
  visit({"skipped"}, report.skipped);
  visit({"learning_rate", "Of the last step."}, report.learning_rate);
  visit({"seconds", "Time of the last step.", "step_seconds"}, record.seconds);
  visit({"samples_per_second", "In the last step."}, record.samples_per_second());
  visit({"makespan"}, record.makespan);
  visit({"bubble", "Idle share of the last step's passes.", "bubble_ratio"}, record.bubble());
  if (!record.validates) return;
  visit({"validation_loss", "Mean loss of the last validation."}, record.validation_loss);
  visit({"validation_accuracy", "Share of right predictions in it."}, record.validation_accuracy);
}

/// visit(field, value) for what a job knows of its restarts. Older logs have none of them.
template <class Record, class Visit>
void for_each_of_restarts(Record& record, const Visit& visit) {
  visit({"ended"}, record.ended);
  visit({"restarts"}, record.restarts);
  visit({"downtime"}, record.downtime);
}

}  // namespace millrace
