// The matrix of ways to train a model of PyTorch's layers that all give the bits of plain autograd:
// what may differ, what has no meaning, and how a case becomes a program.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/core/tensor.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "support/pairwise.hpp"

namespace millrace::testing_torch {

/// The factors, in their order.
enum TorchFactor : std::size_t {
  kOfModel,
  kOfSchedule,
  kOfRanks,
  kOfPlace,
  kOfRecompute,
  kOfBackward,
  kOfPrecision
};

/// As many as two directions of four ranks need.
inline constexpr int kMatrixMicroBatches = 8;

/// All of the catalogue that train, in its order: all but one, which has no backward.
inline std::vector<std::string> schedules_that_train() {
  std::vector<std::string> names;
  for (const ScheduleEntry& entry : schedules())
    if (entry.name != "forward") names.emplace_back(entry.name);
  return names;
}

/// Adds micro-batches in an order of its own.
inline bool has_own_order(std::string_view schedule) {
  static const std::set<std::string_view> names = {"gpipe-lifo", "bfs-lifo", "dualpipe", "chimera"};
  return names.contains(schedule);
}

/// Holds two copies of the model.
inline bool has_copies(std::string_view schedule) {
  return schedule == "dualpipe" || schedule == "chimera";
}

inline std::vector<test::Factor> torch_factors() {
  return {{"model", {"gpt", "resnet"}},
          {"schedule", schedules_that_train()},
          {"ranks", {"1", "2", "3", "4"}},
          {"place", {"sequential", "flow-graph", "ranks", "ipc", "tcp"}},
          {"recompute", {"none", "all", "odd stages"}},
          {"backward", {"its own", "split"}},
          {"precision", {"f32", "bf16"}}};
}

inline std::vector<test::Exclusion> torch_exclusions() {
  const std::vector<std::string> names = schedules_that_train();
  const auto copies = [names](const test::Choice& c) { return has_copies(names[c[kOfSchedule]]); };
  return {{"a pipeline in both directions has an even number of ranks",
           [=](const test::Choice& c) { return copies(c) && c[kOfRanks] % 2 == 0; }},
          {"running means of copies would not see all micro-batches",
           [=](const test::Choice& c) { return copies(c) && c[kOfModel] == 1; }},
          {"one process sends nobody anything",
           [](const test::Choice& c) { return c[kOfRanks] == 0 && c[kOfPlace] >= 3; }}};
}

inline const test::Matrix& torch_matrix() {
  static const test::Matrix matrix(torch_factors(), torch_exclusions());
  return matrix;
}

/// One way to train.
struct TorchCase {
  std::string model = "gpt";
  std::string schedule = "1f1b";
  int ranks = 1;
  std::string place = "sequential";
  std::string recompute = "none";
  bool is_split = false;  ///< the backward of every stage, whatever the schedule does by itself
  DType precision = DType::F32;
};

inline TorchCase torch_case_of(const test::Choice& choice) {
  const test::Matrix& matrix = torch_matrix();
  return {.model = matrix.value(choice, "model"),
          .schedule = matrix.value(choice, "schedule"),
          .ranks = static_cast<int>(choice[kOfRanks]) + 1,
          .place = matrix.value(choice, "place"),
          .recompute = matrix.value(choice, "recompute"),
          .is_split = choice[kOfBackward] == 1,
          .precision = choice[kOfPrecision] == 1 ? DType::BF16 : DType::F32};
}

inline Program program_of(const TorchCase& of) {
  ScheduleOptions options{.ranks = of.ranks, .micro_batches = kMatrixMicroBatches};
  if (find_schedule(of.schedule).takes("slices")) options.slices = 1;
  Program program = generate(of.schedule, options);
  if (of.is_split) program = split_backward(program);
  if (of.recompute == "none") return program;
  std::vector<bool> again;
  for (int stage = 0; stage < program.shape.stages(); ++stage)
    again.push_back(of.recompute == "all" || stage % 2 == 1);
  return insert_recompute(program, again);
}

/// A pairwise cover; all that there are where MILLRACE_WHOLE is set, as the long campaign does.
inline const std::vector<test::Choice>& torch_choices() {
  static const std::vector<test::Choice> choices =
      std::getenv("MILLRACE_WHOLE") == nullptr  // NOLINT(concurrency-mt-unsafe)
          ? torch_matrix().pairwise(1)
          : torch_matrix().all();
  return choices;
}

/// Those of a place, of so many ranks (0: of any).
inline std::vector<test::Choice> torch_choices_of(std::string_view place, int ranks = 0) {
  std::vector<test::Choice> chosen;
  for (const test::Choice& choice : torch_choices()) {
    const TorchCase of = torch_case_of(choice);
    if (of.place == place && (ranks == 0 || of.ranks == ranks)) chosen.push_back(choice);
  }
  return chosen;
}

}  // namespace millrace::testing_torch
