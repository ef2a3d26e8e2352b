// The matrix of ways to train one small transformer that all give the same bits: what may differ,
// what has no meaning, and how a case becomes options.
#pragma once

#include <array>
#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/core/random.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/training/dataset.hpp"
#include "millrace/training/trainer.hpp"
#include "support/pairwise.hpp"
#include "support/test_options.hpp"

namespace millrace::testing_training {

/// The factors, in their order.
enum GptFactor : std::size_t {
  kRanks,
  kSchedule,
  kPlace,
  kSlices,
  kRecompute,
  kHead,
  kPrecision,
  kForm,
  kCut,
  kCourse,
  kThreads,
  kLengths
};

inline constexpr int kGptMicroBatches = 8;

/// All that train, in the order of the catalogue.
inline std::vector<std::string> schedules_that_train() {
  std::vector<std::string> names;
  for (const ScheduleEntry& entry : schedules())
    if (entry.name != "forward") names.emplace_back(entry.name);
  return names;
}

/// Adds micro-batches in an order of its own, so has the bits of its program and no others.
inline bool has_own_order(std::string_view schedule) {
  static const std::set<std::string_view> names = {
      "gpipe-lifo", "bfs-lifo", "dualpipe", "stp", "chimera", "bitpipe"};
  return names.contains(schedule);
}

inline std::vector<test::Factor> gpt_factors() {
  return {{"ranks", {"1", "2", "3", "4"}},
          {"schedule", schedules_that_train()},
          {"place", {"sequential", "ranks", "flow-graph", "ipc", "tcp"}},
          {"slices", {"1", "2", "3"}},
          {"recompute", {"none", "all", "every-3", "selective:attention,linear", "stages:0"}},
          {"head", {"untied", "tied"}},
          {"precision", {"f32", "bf16"}},
          {"form",
           {"layers=4,d=32,heads=4",
            "layers=4,d=32,heads=4,kv=2,norm=rms,mlp=swiglu,pos=rotary",
            "layers=1,d=384,heads=6"}},  // wide enough for its products to be cut for threads
          {"cut", {"even", "ragged"}},
          {"course", {"whole", "resumed"}},
          {"threads", {"1", "2", "3"}},
          {"lengths", {"fixed", "bucket"}}};
}

/// Cases without a meaning. What the catalogue refuses is among them, and nothing else is but for
/// what is said here.
inline std::vector<test::Exclusion> gpt_exclusions() {
  struct Row {
    bool is_bidirectional, takes_slices, divides_cycles, fits_slices, has_own_order, fills_slices,
        braids;
  };
  std::vector<Row> rows;
  for (const std::string& name : schedules_that_train())
    rows.push_back({name == "dualpipe" || name == "chimera" || name == "bitpipe",
                    find_schedule(name).takes("slices"),
                    name == "seq-vpp",
                    name == "seq-vpp" || name == "seq-smart-vpp",
                    has_own_order(name),
                    find_schedule(name).slice_each_rank,
                    name == "stp"});
  const auto row = [rows](const test::Choice& c) { return rows[c[kSchedule]]; };
  const auto ranks = [](const test::Choice& c) { return c[kRanks] + 1; };
  const auto slices = [](const test::Choice& c) { return c[kSlices] + 1; };
  return {
      {"a schedule without slices has one",
       [=](const test::Choice& c) { return slices(c) > 1 && !row(c).takes_slices; }},
      {"a pipeline in both directions has an even number of ranks",
       [=](const test::Choice& c) { return row(c).is_bidirectional && ranks(c) % 2 != 0; }},
      {"a cycle of slices has at most a slice a rank",
       [=](const test::Choice& c) { return row(c).fits_slices && slices(c) > ranks(c); }},
      {"the slices of a cycle divide the ranks",
       [=](const test::Choice& c) { return row(c).divides_cycles && ranks(c) % slices(c) != 0; }},
      {"a group of one micro-batch has a slice for each rank",
       [=](const test::Choice& c) { return row(c).fills_slices && slices(c) < ranks(c); }},
      {"braided units need 3p-1 micro-batches",
       [=](const test::Choice& c) {
         return row(c).braids && kGptMicroBatches < 3 * static_cast<int>(ranks(c)) - 1;
       }},
      {"one process sends nobody anything",
       [=](const test::Choice& c) { return ranks(c) == 1 && c[kPlace] >= 3; }},
      {"an order of its own is that of one program",
       [=](const test::Choice& c) { return row(c).has_own_order && c[kCourse] == 1; }},
      {"lines of different lengths are not cut into slices",
       [=](const test::Choice& c) { return slices(c) > 1 && c[kLengths] == 1; }},
  };
}

inline const test::Matrix& gpt_matrix() {
  static const test::Matrix matrix(gpt_factors(), gpt_exclusions());
  return matrix;
}

/// One way to train it.
struct GptCase {
  int ranks = 1;
  std::string schedule = "gpipe";
  std::string place = "sequential";
  int slices = 1;
  std::string recompute = "none";
  bool is_tied = false;
  DType precision = DType::F32;
  std::string form = "layers=4,d=32,heads=4";
  bool is_ragged = false;
  bool is_resumed = false;
  int threads = 1;  ///< of a rank
  Lengths lengths = Lengths::Fixed;
};

inline GptCase case_of(const test::Choice& choice) {
  const test::Matrix& matrix = gpt_matrix();
  return {static_cast<int>(choice[kRanks]) + 1,
          matrix.value(choice, "schedule"),
          matrix.value(choice, "place"),
          static_cast<int>(choice[kSlices]) + 1,
          matrix.value(choice, "recompute"),
          choice[kHead] == 1,
          choice[kPrecision] == 1 ? DType::BF16 : DType::F32,
          matrix.value(choice, "form"),
          choice[kCut] == 1,
          choice[kCourse] == 1,
          static_cast<int>(choice[kThreads]) + 1,
          lengths_called(matrix.value(choice, "lengths"))};
}

inline const Dataset& gpt_verses(Lengths lengths = Lengths::Fixed) {
  const auto made = [](Lengths of) {
    return text_samples(
        "verses", built_in_text().substr(0, 30000), {.positions = 16, .lengths = of});
  };
  static const TrainTest fixed = made(Lengths::Fixed);
  static const TrainTest bucket = made(Lengths::Bucket);
  return lengths == Lengths::Fixed ? fixed.train : bucket.train;
}

inline ModelSpec gpt_of(const GptCase& of) {
  ModelSpec model =
      parse_model("gpt:" + of.form + ",context=16,dropout=0.1,vocabulary=" +
                  std::to_string(gpt_verses().classes) + (of.is_tied ? ",tied=yes" : ""));
  model.precision = of.precision;
  return model;
}

/// The first layers of every stage but the first: stages of different sizes.
inline std::vector<int> ragged_boundaries(int layers, int stages) {
  std::set<int> cuts;
  for (std::uint32_t i = 0; static_cast<int>(cuts.size()) < stages - 1; ++i)
    cuts.insert(1 + static_cast<int>(random_below({.seed = static_cast<std::uint64_t>(stages)},
                                                  i,
                                                  static_cast<std::uint32_t>(layers) - 1)));
  return {cuts.begin(), cuts.end()};
}

/// What the catalogue is asked for.
inline Program program_of(const GptCase& of) {
  ScheduleOptions options{.ranks = of.ranks, .micro_batches = kGptMicroBatches};
  if (find_schedule(of.schedule).takes("slices")) options.slices = of.slices;
  return generate(of.schedule, options);
}

/// Mini-batches of 14: micro-batches of 2, and 1 for the last two.
inline TestOptions options_of(const GptCase& of) {
  TestOptions options;
  options.pipeline.schedule = of.schedule;
  options.pipeline.shape.ranks = of.ranks;
  options.pipeline.shape.micro_batches = kGptMicroBatches;
  if (find_schedule(of.schedule).takes("slices")) options.pipeline.shape.slices = of.slices;
  if (of.place != "ipc" && of.place != "tcp") options.run.executor = of.place;
  options.run.executor_options.threads_per_rank = of.threads;
  options.run.recompute = parse_recompute(of.recompute);
  if (of.is_ragged)
    options.pipeline.boundaries =
        ragged_boundaries(gpt_of(of).layer_count(), program_of(of).shape.stages());
  options.step.optimizer = optimizer_defaults(OptimizerKind::AdamW);
  options.step.optimizer.weight_decay = 0.05;
  options.step.learning_rate = {
      .kind = LearningRateKind::Cosine, .base = 0.01, .warm_up = 2, .total_updates = 4};
  options.step.clip_norm = 0.25;
  options.step.seed = 11;
  options.fit.batch_size = 14;
  options.fit.steps = 4;
  return options;
}

}  // namespace millrace::testing_training
