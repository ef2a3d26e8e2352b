// Log, metrics, page, timeline, diagram and measured costs of a run as files.
#include <chrono>
#include <fmt/format.h>
#include <iostream>
#include <utility>

#include "cli/files.hpp"
#include "cli/train/records.hpp"
#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/costs.hpp"
#include "millrace/scheduler/plan/draw.hpp"
#include "millrace/scheduler/plan/graph.hpp"

namespace millrace::cli {

namespace {

/// Prometheus reads metrics every few seconds.
constexpr std::chrono::seconds kMetricsAge{1};

}  // namespace

Watching::Watching(const TrainJob& job) : job_(job) {
  const WatchFlags& watch = job.flags.watch;
  if (!watch.metrics.empty()) require_writable("--metrics", watch.metrics);
  if (!watch.report.empty()) require_writable("--report", watch.report);
  if (!watch.log.empty()) log_.emplace(watch.log);
}

void Watching::begin(bool resumes, std::int64_t step, const Program& program, int replicas) {
  program_ = &program;
  restarts_ = job_.flags.start.attempt;
  last_end_ = job_.flags.start.began;
  if (!log_) return;
  StepRecord form;
  form.validates = job_.data.validation.size() > 0;
  for (int copy = 0; copy < replicas; ++copy)
    for (int rank = 0; rank < program.shape.ranks; ++rank)
      form.ranks.push_back({Rank{rank}, copy, {}, {}});
  const bool draws = !job_.flags.watch.report.empty() || !job_.flags.watch.metrics.empty();
  const auto restore = [&](const StepRecord& record) {
    if (draws) count(record);
    if (record.ended < last_end_) return;  // of an earlier job
    last_end_ = record.ended;
    restarts_ -= record.restarts;
  };
  const bool reads = draws || restarts_ > 0;
  log_->begin(
      resumes, step, form, reads ? std::function<void(const StepRecord&)>(restore) : nullptr);
}

void Watching::count(const StepRecord& record) {
  if (totals_.steps() == 0) first_step_ = record.step;
  totals_.add(record);
  history_.add(record);
}

/// With the first step after a restart. Without a log, the steps of earlier attempts are not known.
void Watching::note_restarts() {
  if (restarts_ > 0 && job_.flags.start.began > 0)
    last_.downtime = std::max(0.0, last_.ended - last_.seconds - last_end_);
  last_.restarts = std::exchange(restarts_, 0);
}

void Watching::add(const StepRecord& record) {
  last_ = record;
  last_.ended =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  note_restarts();
  if (log_) log_->add(last_);
  count(last_);
  if (job_.flags.watch.metrics.empty()) return;
  const auto now = std::chrono::steady_clock::now();
  if (totals_.steps() > 1 && now - metrics_written_ < kMetricsAge) return;
  metrics_written_ = now;
  write_metrics();
}

/// What fails now may work the next time.
void Watching::write_metrics() {
  try {
    write_files({{"--metrics", job_.flags.watch.metrics, prometheus_text(totals_, last_)}});
    fault_.clear();
  } catch (const Error& error) {
    if (fault_.empty()) std::cerr << fmt::format("millrace: {}\n", error.what());
    fault_ = error.what();
  }
}

std::string Watching::page() const {
  const TrainFlags& flags = job_.flags;
  return draw_page({"millrace train: " + program_->name,
                    fmt::format("model {}, data {}, {} ranks, {} micro-batches, optimizer {}, {}, "
                                "seed {}{}",
                                flags.model,
                                flags.data,
                                program_->shape.ranks,
                                program_->shape.micro_batches,
                                name_of(job_.options.step.optimizer.kind),
                                flags.precision,
                                job_.options.step.seed,
                                first_step_ > 1 ? fmt::format("; begins at step {}, the steps "
                                                              "before it are in no --log",
                                                              first_step_)
                                                : ""),
                    history_,
                    totals_,
                    *program_,
                    last_.timeline});
}

void Watching::finish() {
  if (totals_.steps() > 0) {
    if (!job_.flags.watch.metrics.empty()) write_metrics();
    if (!job_.flags.watch.report.empty())
      write_files({{"--report", job_.flags.watch.report, page()}});
  }
  if (log_) log_->finish();
  if (!fault_.empty()) throw Error(fault_);
}

void Watching::finish_failed() noexcept {
  try {
    finish();
  } catch (const std::exception&) {
    return;  // its alarm has been given
  }
}

TrainOutputs::TrainOutputs(const TrainFlags& flags)
    : trace_(flags.trace), svg_(flags.svg), costs_(flags.profile) {
  for (const auto& [option, path] :
       {std::pair("--trace", &trace_), {"--svg", &svg_}, {"--profile", &costs_}})
    if (!path->empty()) require_writable(option, *path);
}

void TrainOutputs::write(const Program& program, const Timeline& last, const Cost& cost) const {
  std::vector<OutputFile> files;
  if (!trace_.empty()) files.push_back({"--trace", trace_, draw_trace(program, last)});
  if (!svg_.empty())
    files.push_back({"--svg", svg_, draw_svg(program, last, cost, program.name + ", measured")});
  if (!costs_.empty())
    files.push_back({"--profile", costs_, write_costs(costs_of_stages(program.shape, cost))});
  write_files(files);
}

}  // namespace millrace::cli
