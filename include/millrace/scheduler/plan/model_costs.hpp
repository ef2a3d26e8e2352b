// What a model costs, said once for every cut of it: times and memory of full stages as people (a
// command line, a Python call) state them, from which the costs of any shape are made and what a
// generator hears.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/scheduler/plan/cost_file.hpp"
#include "millrace/scheduler/plan/generators.hpp"

namespace millrace {

/// Times and memory of a model of p full stages. Lists of times, memory and gradients hold 1 value;
/// p values, of p consecutive full stages; or S values, of every stage as if it were a full one. An
/// empty list is the default. Thread-safety: immutable, share freely.
struct ModelCosts {
  std::vector<double> forward = {}, input = {}, weight = {};  ///< F, I, W; default 1; B takes I + W
  std::vector<double> recompute_time = {};                    ///< default: as forward
  std::vector<double> slice_costs = {};  ///< q shares in a stage's times; default: equal
  bool chunk_costs = false;              ///< the times and memory are of a chunk

  std::vector<double> memory_forward = {};   ///< change at F; default 1
  std::vector<double> memory_input = {};     ///< after I; default 0
  std::vector<double> memory_weight = {};    ///< after W; default: gives back the other two
  std::vector<double> memory_boundary = {};  ///< of a stage of any size that recomputes; default 0

  std::vector<double> latency = {};    ///< of a message: 1 value or p x p; default 0
  std::vector<double> bandwidth = {};  ///< bytes per unit of time, likewise; 0: unlimited; goes
                                       ///< with message_bytes or gradient_bytes
  std::optional<double> message_bytes = {};  ///< of one micro-batch; goes with bandwidth
  bool contention = false;                   ///< messages of a directed link follow one another
  std::vector<double> rank_speed = {};       ///< p factors; default 1
  int cores = 0;                             ///< that the ranks share; 0: one per rank
  int data_parallel = 1;                     ///< copies of the pipeline, whose gradients are added
  bool tree_of_sums = false;                 ///< partial sums of gradients count as memory
  std::vector<double> gradient_bytes = {};   ///< of them; default 0; goes with data_parallel
  int accumulate = 1;                        ///< passes of a step, whose gradients are added up
  bool atomic_pairs = false;                 ///< overlapped pairs are one op of F + B
  std::optional<double> pair_cost = {};      ///< they are one op of this time, of a full stage

  /// Costs of each stage instead of times (and of memory, where it says memory).
  std::shared_ptr<const CostFile> file = {};
  std::string file_name = {};  ///< for sentences

  /// Whether a list of times or memory was given: what a file may say too.
  [[nodiscard]] bool says_times_or_memory() const;
};

/// Throws InvalidArgument when a file and a list say the same thing.
void require_said_once(const ModelCosts& costs);

/// A limit needs something to limit: throws InvalidArgument when there is a file, and neither it
/// nor a list says what memory changes.
void require_memory(const ModelCosts& costs);

/// The same without gradients, and the bandwidth that is for them alone, where a pipeline of this
/// shape adds none: for shapes side by side, of which cost_of would refuse some.
[[nodiscard]] ModelCosts costs_that_apply(const ModelCosts& costs, const Shape& shape);

/// Costs of a shape: a stage takes p / S of a full stage's time, a slice its share of that. Every
/// time is a whole number of ticks when the given times have at most nine decimals. Throws
/// InvalidArgument for a list of another length, a bandwidth without message_bytes and the like, in
/// the names of the members. Cost: O(stages slices). Thread-safety: pure function.
[[nodiscard]] Cost cost_of(const Shape& shape, const ModelCosts& costs);

/// What p full stages keep at F in all: the unit in which limits are often said. `stages` are those
/// of one copy of the model.
[[nodiscard]] double memory_of_all(const ModelCosts& costs, int ranks, int stages);

/// The options of a generator with the means of the costs, and with those of each stage where
/// stages differ and the entry takes that. The memory limit stays as it is. Throws as cost_of does.
[[nodiscard]] ScheduleOptions with_costs(const ScheduleEntry& entry,
                                         ScheduleOptions options,
                                         const ModelCosts& costs);

/// As generate(name, options), of a model with these costs.
[[nodiscard]] Program generate(std::string_view name,
                               const ScheduleOptions& options,
                               const ModelCosts& costs);

}  // namespace millrace
