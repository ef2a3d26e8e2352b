// What flows between stages, as data: who produces, who consumes, who is at the other end of a send
// or receive, and what a message holds; and which weights of theirs are one. Everything else asks
// here; nothing else counts stages up or down.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "millrace/core/ids.hpp"
#include "millrace/scheduler/plan/program.hpp"
#include "millrace/scheduler/plan/shape.hpp"

namespace millrace {

/// No link: what an action has that exchanges nothing with other stages.
inline constexpr std::uint32_t kNoLink = ~std::uint32_t{0};

/// All that one stage gives another: what travels as one message per unit and direction.
/// Thread-safety: immutable, share freely.
struct StageLink {
  Stage from;
  Stage to;
  /// Among the links that leave `from`: 0 leads to the next stage, the others count from 1 by `to`.
  std::uint8_t leaving = 0;
  /// Among the links that enter `to`: 0 comes from the stage before, the others count from 1 by
  /// `from`.
  std::uint8_t entering = 0;
  /// Among all links of the graph; ascends with (from, to).
  std::uint32_t index = 0;

  friend bool operator==(const StageLink&, const StageLink&) = default;
};

/// The links of a shape, looked up by stage. A chain needs no table.
///
/// A send or receive names its link by the number at the stage that acts: SEND_F and RECV_B stand
/// at the producer and name what leaves it, RECV_F and SEND_B at the consumer and name what enters.
/// In a chain that number is always 0. Thread-safety: immutable, share freely.
class StageGraph {
 public:
  /// Throws InvalidArgument for an edge that names no stage of the shape, runs backwards or to its
  /// own stage, or has a negative index; for an input with two producers or none (inputs count from
  /// 0 without a gap), a stage between the ends without input or consumer, and a stage with more
  /// than 255 links on one side; for sinks that do not ascend, that others consume or that the last
  /// stage is missing from. Also for ties: of fewer than two weights, of a weight that names
  /// no stage or has no name, that is tied twice, or whose stage comes before that of the one named
  /// before it. Cost: O(edges log edges + ties log ties); a chain without ties O(1).
  explicit StageGraph(const Shape& shape);

  /// A chain.
  explicit StageGraph(int stages) : stages_(stages) {}

  [[nodiscard]] int stages() const { return stages_; }
  [[nodiscard]] bool is_chain() const { return chain_; }

  /// How many stages have a loss.
  [[nodiscard]] std::size_t sinks() const { return sinks_.empty() ? 1 : sinks_.size(); }
  /// Which of these the stage is, ascending; none for the others. Cost: O(their number).
  [[nodiscard]] std::optional<std::size_t> sink(Stage stage) const;

  /// Number of links; the index of each is below it.
  [[nodiscard]] std::size_t links() const {
    return is_chain() ? static_cast<std::size_t>(stages_ > 0 ? stages_ - 1 : 0) : links_.size();
  }

  /// Calls `use(StageLink)` for what leaves a stage, by consumer. Cost: O(their number).
  template <class Use>
  void for_each_leaving(Stage stage, Use&& use) const {
    if (!is_chain())
      every_leaving(stage, use);
    else if (stage.value + 1 < stages_)
      use(chain_link(stage));
  }

  /// Calls `use(StageLink)` for what enters a stage, by producer. Cost: O(their number).
  template <class Use>
  void for_each_entering(Stage stage, Use&& use) const {
    if (!is_chain())
      every_entering(stage, use);
    else if (stage.value > 0)
      use(chain_link(Stage{stage.value - 1}));
  }

  /// The link of a send or receive; none when its stage has no link of that number on that side.
  [[nodiscard]] std::optional<StageLink> link(const Action& action) const {
    if (!is_chain()) return numbered_link(action);
    const int from = action.stage.value - (acts_for_leaving(action.op) ? 0 : 1);
    if (from < 0 || from + 1 >= stages_ || action.edge != 0) return std::nullopt;
    return chain_link(Stage{from});
  }

  /// The edges that a link is made of, by input of the consumer; empty in a chain, where all
  /// outputs are the inputs of the next stage, in order.
  [[nodiscard]] std::span<const StageEdge> edges(const StageLink& link) const;

  /// Weights that are one.
  [[nodiscard]] std::span<const StageTie> ties() const { return ties_; }
  /// Whether a weight of the stage is tied to another, of any stage. Cost: O(tied weights).
  [[nodiscard]] bool is_tied(Stage stage) const;
  /// By stage: the stages that have their gradients reduced together with it, through one tie or
  /// several, ascending and itself among them. Cost: O(stages x tied weights).
  [[nodiscard]] std::vector<std::vector<Stage>> reduced_together() const;

 private:
  // Not inlined: the chain is what the innermost loops are made of.
  template <class Use>
  __attribute__((noinline)) void every_leaving(Stage stage, Use& use) const {
    for (std::size_t i = first_[stage.index()]; i < first_[stage.index() + 1]; ++i) use(links_[i]);
  }
  template <class Use>
  __attribute__((noinline)) void every_entering(Stage stage, Use& use) const {
    const std::size_t end = first_entering_[stage.index() + 1];
    for (std::size_t i = first_entering_[stage.index()]; i < end; ++i) use(links_[entering_[i]]);
  }

  static StageLink chain_link(Stage from) {
    return {from, Stage{from.value + 1}, 0, 0, static_cast<std::uint32_t>(from.value)};
  }
  /// SEND_F and RECV_B stand at the producer, RECV_F and SEND_B at the consumer.
  static bool acts_for_leaving(Op op) { return op == Op::SendForward || op == Op::RecvBackward; }
  [[nodiscard]] std::optional<StageLink> numbered_link(const Action& action) const;
  void make_links(const Shape& shape);
  void number_links();

  int stages_ = 0;
  bool chain_ = true;
  std::vector<StageTie> ties_;
  std::vector<Stage> sinks_;
  std::vector<StageEdge> edges_;             // by (from, to, input)
  std::vector<StageLink> links_;             // by (from, to)
  std::vector<std::size_t> edge_of_;         // by link: its first in edges_; one more at the end
  std::vector<std::size_t> first_;           // by stage: the first that leaves it, in links_
  std::vector<std::size_t> entering_;        // places in links_, by (to, from)
  std::vector<std::size_t> first_entering_;  // by stage: the first that enters it, in entering_
};

/// Calls `use(StageLink)` for every link through which other stages get what F, B or I makes:
/// activations go along those that leave the stage, gradients back along those that enter it.
template <class Use>
void for_each_link_out(const StageGraph& graph, const Action& action, Use&& use) {
  if (action.op == Op::Forward)
    graph.for_each_leaving(action.stage, use);
  else if (gives_input_gradient(action.op))
    graph.for_each_entering(action.stage, use);
}

/// As above for the links through which F, B or I gets what it needs.
template <class Use>
void for_each_link_in(const StageGraph& graph, const Action& action, Use&& use) {
  if (action.op == Op::Forward)
    graph.for_each_entering(action.stage, use);
  else if (gives_input_gradient(action.op))
    graph.for_each_leaving(action.stage, use);
}

/// The send of what `producer`, an F, B or I, gives along `link`, and the receive at the other end.
[[nodiscard]] Action send_of(const Action& producer, const StageLink& link);
[[nodiscard]] Action receive_of(const Action& producer, const StageLink& link);

/// What travels between two ranks, named as transports name it.
/// Thread-safety: immutable, share freely.
struct Message {
  Rank source;
  Rank destination;
  Direction direction = Direction::Forward;
  std::uint64_t step = 0;
  Replica replica;
  Stage stage;            ///< that receives
  std::uint8_t edge = 0;  ///< the link's number at that stage
  Unit unit;

  friend auto operator<=>(const Message&, const Message&) = default;
};

/// The message of a send or receive: source, destination and what tells it from all others, so that
/// any transport can be driven from a plan. Both ends give the same. Throws InvalidArgument for
/// another op and for a link that its stage does not have. Cost: O(1) in a chain; else give the
/// graph.
[[nodiscard]] Message message_of(const Shape& shape, const Action& action, std::uint64_t step);
[[nodiscard]] Message message_of(const Shape& shape,
                                 const StageGraph& graph,
                                 const Action& action,
                                 std::uint64_t step);

}  // namespace millrace
