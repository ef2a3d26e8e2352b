// Passes: pure functions program -> program. Generators emit compute; passes add the rest.
#pragma once

#include "millrace/scheduler/plan/program.hpp"

namespace millrace {

/// Adds SEND and RECV pairs for every rank-crossing edge: the sender's position places both ends,
/// so the result is deadlock-free even under strict rendezvous (SCHEDULES 3.2). Idempotent: a
/// program that has messages is returned as it is. Throws InvalidArgument when the compute order
/// has a cycle.
[[nodiscard]] Program insert_messages(const Program& program);

/// Replaces every B by I and W, adjacent. Idempotent.
[[nodiscard]] Program split_backward(const Program& program);

/// Replaces every I directly followed by its own W by B. Idempotent.
[[nodiscard]] Program merge_backward(const Program& program);

/// Adds REDUCE_GRAD for stages that live on several ranks (replicas), after their last B or W.
/// Idempotent.
[[nodiscard]] Program insert_reductions(const Program& program);

/// Adds a recompute action before every B or I of every stage. Idempotent.
[[nodiscard]] Program insert_recompute(const Program& program);

/// Clears `with_next` on all actions: pairs run one half after the other. Idempotent.
[[nodiscard]] Program decouple_pairs(const Program& program);

/// Removes messages, reductions and recompute: compute only. Idempotent.
[[nodiscard]] Program compute_only(const Program& program);

}  // namespace millrace
