// The gradients of one stage, added over the copies of a pipeline that data parallelism trains side
// by side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "millrace/core/tensor_pool.hpp"
#include "millrace/scheduler/run/executor.hpp"
#include "millrace/scheduler/run/grid.hpp"

namespace millrace::run {

/// One stage's share in it. Each copy has its own part of the stage's gradients, which it gets from
/// all others and adds up in their order. Of what every copy needs whole, cut into as many blocks
/// as there are copies, it gives everybody the sum: 2 (d - 1) / d of the bytes leave each process
/// and arrive, as in a ring, in two rounds instead of 2 (d - 1). Of what each copy needs its share
/// of (HostedStage::shares) that is the part it adds, and the first round is all: (d - 1) / d.
/// Thread-safety: externally synchronised, on the endpoint's thread.
class GradientAllReduce {
 public:
  /// The position has an endpoint, and must outlive this. `at_once`: whoever starts also waits.
  /// `needed_whole`, by parameter: in spite of the shares; empty: none. Throws InvalidArgument for
  /// a gradient that is not f32.
  GradientAllReduce(const HostedStage& hosted,
                    const GridPosition& position,
                    bool at_once,
                    const std::vector<bool>& needed_whole = {});

  [[nodiscard]] bool is_at_once() const { return at_once_; }
  enum class Progress : std::uint8_t { None, Started, Added, Done };
  [[nodiscard]] Progress progress() const { return progress_; }
  /// Whether messages of others are still to come.
  [[nodiscard]] bool is_under_way() const {
    return progress_ == Progress::Started || progress_ == Progress::Added;
  }
  void begin_step();

  /// Sends the others what they add up. `has_sum` false: all micro-batches of this copy were empty.
  void start(const StepSettings& settings, bool has_sum, TensorPool& pool);

  /// Does what can be done with the messages that are here: between passes, so that the second
  /// round runs beside them as the first does. Throws as finish().
  void go_on(const StepSettings& settings, TensorPool& pool);

  /// Waits for what the others send, adds, and leaves the sum of all copies in the gradients, of
  /// shares in this copy's alone. Throws what the endpoint throws, and Mismatch for a part of
  /// another length.
  void finish(const StepSettings& settings, Deadline deadline, TensorPool& pool);

 private:
  struct Piece {
    std::size_t parameter = 0;
    ElementRange range;
  };
  using Pieces = std::vector<Piece>;

  void cut_whole(const std::vector<bool>& is_whole);
  void cut_shares(const std::vector<bool>& is_whole);
  [[nodiscard]] const Pieces& pieces(int round, int copy) const;
  [[nodiscard]] Rank process(int copy) const;
  [[nodiscard]] MessageTag tag(const StepSettings& settings, int round, int from) const;
  [[nodiscard]] Tensor take(const Pieces& pieces, TensorPool& pool) const;
  void put(const Pieces& pieces, const Tensor& numbers) const;
  /// Until when to wait; nothing: not at all.
  using Patience = std::optional<Deadline>;
  void go_on(const StepSettings& settings, TensorPool& pool, Patience patience);
  [[nodiscard]] bool take_messages(const StepSettings& settings, int round, Patience patience);
  [[nodiscard]] std::optional<TensorList> received(const StepSettings& settings,
                                                   int round,
                                                   int from,
                                                   Patience patience) const;
  void begin_round();
  void add_parts(const StepSettings& settings, TensorPool& pool);
  void give_sums(const StepSettings& settings, bool has_sum, TensorPool& pool) const;
  void put_sums();
  [[nodiscard]] std::optional<Tensor> added(std::vector<std::optional<Tensor>> parts,
                                            AccumulateOrder order) const;

  HostedStage hosted_;
  const GridPosition* position_;
  std::vector<Parameter*> parameters_;
  // By copy: its block of what all need, and that with its share of the rest.
  std::vector<Pieces> blocks_, parts_;
  bool gives_sums_ = false;  // there is something that all need
  bool at_once_;
  Progress progress_ = Progress::None;  // of this step
  bool has_sum_ = true;
  std::vector<std::optional<TensorList>> messages_;  // by copy, of the round that is under way
};

}  // namespace millrace::run
