// What the optimizer keeps of a stage, spread over the copies of a pipeline, each of which moves
// its own share of the weights and gives it to the others (ZeRO stage 1: Rajbhandari et al., SC
// 2020).
#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "millrace/scheduler/run/executor.hpp"
#include "millrace/training/optimizer.hpp"
#include "millrace/training/state.hpp"
#include "millrace/transport/process_group.hpp"

namespace millrace {

/// By parameter, of a place, and copy: the elements that each of so many copies moves. All blocks
/// of kNormBlock elements of the trained parameters, one behind the other, are cut into as many
/// parts as there are copies. So no share is larger than another by more than a block, and every
/// block has one sum.
[[nodiscard]] std::vector<std::vector<ElementRange>> shares_of(
    std::span<const Parameter* const> parameters, int copies);

/// Sets the shares of the stages of a place, so that each copy gets the sums of the gradients that
/// it moves; and of one copy in the entries of that place.
void share_out(std::span<HostedStage> stages, int copies);
void share_out(std::span<StateEntry> entries, int copies, int copy);

/// The work of one place's copies on what is spread over them. All but the constructor are
/// collectives of the copies. Thread-safety: externally synchronised, on the endpoint's thread.
class OptimizerShards {
 public:
  /// `state` spreads over the seat's grid and must outlive this, as must the seat's endpoint.
  OptimizerShards(TrainingState& state, const GridPosition& seat);

  [[nodiscard]] Rank place() const { return place_; }

  /// Names the step of what follows.
  void begin_step(std::uint64_t step) { copies_.begin_step(step); }

  /// sum_of_squares of the gradient in each block of this copy's share, of what is moved; no
  /// collective.
  [[nodiscard]] std::vector<double> squares_of_blocks();

  /// Of those of all copies, in the first copy's process: of every entry of the place
  /// sum_of_squares of its gradient, 0 where it is not moved. Empty for the others.
  [[nodiscard]] std::vector<double> sums_of_squares(std::span<const double> of_blocks);

  /// Of every entry of the place, the optimizer's sums over its whole parameter: each copy looks at
  /// the blocks of its share, and their sums are added in the order of the blocks. Empty where the
  /// optimizer wants none.
  [[nodiscard]] std::vector<std::vector<double>> sums(const Optimizer& optimizer,
                                                      const UpdateSettings& settings);

  /// Gives everybody the values that each has moved, or the gradients that each has the sum of:
  /// (d - 1) / d of their bytes arrive and leave.
  void share_values();
  void share_gradients();

  using Use = std::function<void(const StateEntry&, std::string_view part, const Tensor& whole)>;
  /// Calls `use` in the first copy's process with all that is spread, each part whole, or with the
  /// master values alone.
  void collect(const Use& use, bool values_alone);

  /// The same where copies can no longer talk, no collectives: what this one has of all that is
  /// spread, part behind part; and what all have, by copy, each part whole.
  [[nodiscard]] Tensor own_state();
  void join(std::span<const Tensor> states, const Use& use);

  /// Of this copy among those of its place, and their processes.
  [[nodiscard]] int copy() const { return copies_.rank(); }
  [[nodiscard]] std::span<const Rank> processes() const { return copies_.processes(); }

 private:
  [[nodiscard]] std::span<StateEntry> entries() { return state_->entries(place_); }
  struct SpreadPart {
    std::string_view name;
    const Tensor* own = nullptr;
  };
  [[nodiscard]] std::vector<SpreadPart> spread_parts(const StateEntry& entry,
                                                     bool values_alone) const;

  /// Of a parameter, its value or gradient.
  using Part = Tensor Parameter::*;
  void share(Part part);
  [[nodiscard]] Tensor own_shares(Part part);
  void take_shares(std::size_t copy, Part part, const Tensor& numbers);
  void require_share(std::size_t copy, bool fits) const;

  TrainingState* state_;
  Rank place_;
  ProcessGroup copies_;
  std::vector<std::vector<ElementRange>> shares_;  // by entry and copy; none of what is not trained
};

}  // namespace millrace
