// What the optimizer keeps of a stage, spread over the copies of a pipeline, each of which moves
// its own share of the weights and gives it to the others (ZeRO stage 1: Rajbhandari et al., SC
// 2020).
#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "millrace/training/optimizer.hpp"
#include "millrace/training/state.hpp"
#include "millrace/transport/process_group.hpp"

namespace millrace {

/// Sets the share of one of so many copies in the entries of a place: all blocks of kNormBlock
/// elements of its trained parameters, one behind the other, in as many parts as there are copies.
/// So no share is larger than another by more than a block, and every block has one sum.
void share_out(std::span<StateEntry> entries, int copies, int copy);

/// The work of one place's copies on what is spread over them. All but the constructor are
/// collectives of the copies. Thread-safety: externally synchronised, on the endpoint's thread.
class OptimizerShards {
 public:
  /// `state` spreads over the seat's grid and must outlive this, as must the seat's endpoint.
  OptimizerShards(TrainingState& state, const GridSeat& seat);

  /// Names the step of what follows.
  void begin_step(std::uint64_t step) { copies_.begin_step(step); }

  /// Of every entry of the place, the optimizer's sums over its whole parameter: each copy looks at
  /// the blocks of its share, and their sums are added in the order of the blocks. Empty where the
  /// optimizer wants none.
  [[nodiscard]] std::vector<std::vector<double>> sums(const Optimizer& optimizer,
                                                      const UpdateSettings& settings);

  /// Gives everybody the values that each has moved: (d - 1) / d of their bytes arrive and leave.
  void share_values();

  using Use = std::function<void(const StateEntry&, std::string_view part, const Tensor& whole)>;
  /// Calls `use` in the first copy's process with all that is spread, each part whole, or with the
  /// master values alone.
  void collect(const Use& use, bool values_alone);

 private:
  [[nodiscard]] std::span<StateEntry> entries() { return state_->entries(place_); }
  void use_pieces(const StateEntry& entry,
                  const std::vector<TensorList>& pieces,
                  std::span<const std::string_view> parts,
                  const Use& use) const;

  TrainingState* state_;
  Rank place_;
  ProcessGroup copies_;
  /// By copy and entry: the elements of its share.
  struct Share {
    std::size_t first = 0, last = 0;
  };
  std::vector<std::vector<Share>> shares_;
};

}  // namespace millrace
