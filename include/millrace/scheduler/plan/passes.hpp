// Passes: pure functions program -> program. Generators emit compute; passes add the rest.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/scheduler/plan/graph.hpp"
#include "millrace/scheduler/plan/program.hpp"

namespace millrace {

class Graph;
struct Timeline;

/// Whether the program has a SEND or RECV. Cost: O(actions).
[[nodiscard]] bool has_messages(const Program& program);

/// Adds SEND and RECV pairs for every rank-crossing edge: the time at which a run with F = I = W =
/// 1 produces a message places both ends, in one global order, so the result is deadlock-free even
/// under strict rendezvous. A receive may stand ahead of its use; with those costs that delays
/// nothing. An overlapped pair stays together: receives before it, sends after it. Idempotent: a
/// program that has messages is returned as it is. Throws InvalidArgument, with the cycle, when
/// the order of the program (with its pairs atomic) has one. Cost: O(actions x n) when a rank
/// exchanges messages with n others.
[[nodiscard]] Program insert_messages(Program program);

/// Whether insert_messages' result is proved, without making it, to hang on no transport, not even
/// a rendezvous: `true` says what verify would find with each of them; `false` says nothing. `run`
/// is a run of the graph's program, with any costs. Requires a program that verify has nothing
/// against and a run with an interval per action, else throws InvalidArgument. False for a program
/// with pairs, reductions or messages, and for a run in which an action takes no time. Cost:
/// O(actions + edges), no memory.
[[nodiscard]] bool inserted_messages_cannot_hang(const Graph& graph, const Timeline& run);

/// Adds each RECV right before the action that uses it and each SEND right after its producer: no
/// receive ever stands in the way, but sends must not wait for their receiver: see
/// channel_capacities for the room they need. Idempotent like insert_messages. Cost: O(actions).
[[nodiscard]] Program insert_messages_before_use(Program program);

/// Moves each RECV of a program with messages right before the action (its pair) that uses it: what
/// a run-time does that posts receives and waits at the use. Idempotent. Cost: O(actions).
[[nodiscard]] Program receive_before_use(Program program);

/// Replaces every B by I and W, adjacent; the W of a B that leads a pair follows the pair.
/// Idempotent.
[[nodiscard]] Program split_backward(Program program);

/// Replaces every I directly followed by its own W by B. Idempotent.
[[nodiscard]] Program merge_backward(Program program);

/// Adds REDUCE_GRAD for stages that live on several ranks (replicas) or have a tied weight: one per
/// copy, after the last B or W of all copies and of all stages tied to it in a run with F = I = W =
/// 1, in one global order, so that blocking collectives meet. Tied stages on one rank get one each.
/// Idempotent: a program that reduces anything is returned as it is. Throws InvalidArgument when a
/// tie cannot be or the order of the program has a cycle.
[[nodiscard]] Program insert_reductions(Program program);

/// The same where `pipelines` copies of the whole pipeline are trained side by side: of several,
/// every stage that has none gets its own, at the end of its rank's list (before a STEP), where it
/// holds up no pass: the sum over the copies starts with the stage's last B or W. Throws
/// InvalidArgument for fewer than 1.
[[nodiscard]] Program insert_reductions(Program program, int pipelines);

/// As insert_reductions(program), each at the end of its rank's list: what a search times, whose
/// orders are of passes alone. Idempotent.
[[nodiscard]] Program insert_late_reductions(Program program);

/// Adds a recompute action before every B or I of every stage (before the pair, for the second half
/// of a pair). Idempotent: a program that recomputes anything is returned as it is.
[[nodiscard]] Program insert_recompute(Program program);

/// The same for those of its stages that `of_stage` says.
[[nodiscard]] Program insert_recompute(Program program, const std::vector<bool>& of_stage);

/// The same before those B and I that are `wanted`.
[[nodiscard]] Program insert_recompute(Program program,
                                       const std::function<bool(const Action&)>& wanted);

/// Clears `with_next` on all actions: pairs run one half after the other. Idempotent.
[[nodiscard]] Program decouple_pairs(Program program);

/// Removes messages, reductions and recompute: compute only. Idempotent.
[[nodiscard]] Program compute_only(Program program);

/// By stage: whether the program recomputes any unit of it. Throws InvalidArgument for a recompute
/// of a stage that the shape does not have. Cost: O(actions).
[[nodiscard]] std::vector<bool> recomputed_stages(const Program& program);

/// "none", "all" or "stages:0,2-4". Cost: O(stages).
[[nodiscard]] std::string recompute_text(const std::vector<bool>& of_stage);

/// The same of a program, with " in part" where a stage recomputes some micro-batches only.
[[nodiscard]] std::string describe_recompute(const Program& program);

/// Reads that form for `stages` stages. Throws InvalidArgument, with what is allowed, for another
/// word, a number that is none, a range that runs downwards and a stage that there is not.
[[nodiscard]] std::vector<bool> parse_recompute_stages(std::string_view text, int stages);

}  // namespace millrace
