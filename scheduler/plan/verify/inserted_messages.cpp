// The proof that what insert_messages makes cannot hang, read off a run of the compute actions.
//
// Give both ends of a message the key (tick at which its producer ends, source), and an action the
// key (tick at which it starts, behind all messages of that tick). In a run in which every action
// takes time, every list runs one action after another and nothing starts before what it needs has
// ended:
//   1. insert_messages merges by these keys, so every list ascends in them, and the messages of a
//      channel stand in the same order at both of its ends;
//   2. a producer has a smaller key than its message, and the message a smaller one than its user;
//   3. what a transport adds points back as well: under a rendezvous a send waits for what stands
//      before its receive, with room for K messages SEND j + K waits for RECV j of its channel.
// So every wait goes from a larger key to a smaller one, or from a receive to its send, and no
// chain of waits closes. insert_messages takes its ticks from a run with F = I = W = 1. The run
// that is looked at here may have other times: it shows that the order has no cycle, so that the
// other run ends too, and a run of the clock has the three properties by construction.
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/simulate.hpp"
#include "plan/model/replay.hpp"
#include "plan/model/validate.hpp"

namespace millrace {

namespace {

/// Whether a rank's actions take time, follow one another and start when what they need has ended.
bool runs_in_order(const Graph& graph, const Timeline& run, std::size_t rank) {
  const auto& intervals = run.ranks[rank];
  Node node = graph.first(Rank{static_cast<std::int32_t>(rank)});
  double free = 0;
  for (const Interval& interval : intervals) {
    if (!(interval.start >= free && interval.end > interval.start)) return false;
    free = interval.end;
    for (const Node producer : graph.producers(node)) {
      const std::size_t source = plan::holder_beside(graph.first(), rank, producer);
      const Node first = graph.first(Rank{static_cast<std::int32_t>(source)});
      if (!(run.ranks[source][producer - first].end <= interval.start)) return false;
    }
    ++node;
  }
  return true;
}

}  // namespace

bool inserted_messages_cannot_hang(const Graph& graph, const Timeline& run) {
  plan::require_aligned(graph.program(), run);
  if (graph.has_messages() || graph.has_pairs() || graph.has_joint_actions()) return false;
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank)
    if (!runs_in_order(graph, run, rank)) return false;
  return true;
}

}  // namespace millrace
