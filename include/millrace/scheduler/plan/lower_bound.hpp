// lower_bound: what no schedule of a shape can beat. Gives the search its gap and its proof.
#pragma once

#include <limits>
#include <vector>

#include "millrace/scheduler/plan/cost.hpp"
#include "millrace/scheduler/plan/objective.hpp"
#include "millrace/scheduler/plan/shape.hpp"
#include "millrace/scheduler/plan/stop.hpp"

namespace millrace {

/// A lower bound, in the user's units (ticks / ticks_per_unit), on the makespan or the span of
/// every program of `shape` with full, split or mixed backward that stays within `memory_limit`
/// at any moment, and in which the stages that `recompute` says (by stage; empty: none) run
/// their forward again right before their backward. Infinite when not even one forward, or one
/// recompute, fits under the limit.
///
/// **Why it holds**, for any stage costs, rank speeds and links:
/// 1. *Relaxed times.* I lasts I' = min(I, B) and W lasts W' = min(B, I + W) - I'. A full backward
///    covers an I' followed at once by a W', so every schedule contains one of the relaxed times.
/// 2. *First in, first out.* All micro-batches of a replica cost the same. Give the j-th earliest
///    action of a class (stage and kind) to the j-th micro-batch. If every x_i ends before its y_i
///    starts, then the j-th earliest x ends before the j-th earliest y starts, so all dependencies
///    still hold, with the same slots and the same memory. Hence chains "the j-th of a class after
///    the (j-1)-th of it" may be assumed.
/// 3. *Memory.* Before the j-th F of a stage starts, enough W (and I) of that stage have ended that
///    the stage's own share fits under the limit; the other chunks of the rank hold at least 0.
///    Under 2 these are the first ones, so "F_j after W_n" may be assumed with the smallest n. An I
///    (or B) that runs after F_j needs what it holds only while it runs besides, so as many I have
///    ended before F_j as make room for that, and before an I as many W. Costs with which a
///    micro-batch ever holds less than 0 have no such chains.
/// 4. *Heads and tails.* Longest paths over the dependencies with their message times and the
///    chains of 2 and 3 give every action an earliest start and a least time from its end to the
///    end. For the makespan they count from the first start and to the last end of all ranks. For
///    the span from the first start and to the last end of one rank, whose every action starts no
///    earlier and ends no later, at whatever time that rank starts; so for one rank after the
///    other. Actions without such a path are left out.
/// 5. *One rank at a time.* A rank runs one action at once. The best preemptive schedule of its
///    actions with these heads and tails (Jackson's rule: of what is ready, the longest tail) is a
///    lower bound; so is the largest over ranks. It is at least head + all work + smallest tail.
///
/// With several copies of the pipeline the smallest of the stages' sums is added: what ends last on
/// a rank is the last B or W of one of its stages. Of several passes (Cost::passes) the makespan is
/// that of all of them, each of which is bounded like this, with a sum after the last.
///
/// A recompute and its backward count as one action of their ranks, which needs the gradient only
/// when the recompute has ended.
///
/// With several slices only 1, 4 without chains and 5 are used: slices differ in cost. Link
/// contention and shared processors are not supported (InvalidArgument).
/// Throws Stopped when `stop` says so. Cost: O(stages x micro-batches x log); for the span as often
/// as there are ranks, but for no more than 2 million actions in all, the rank of the first stage
/// and the busiest ones first. Source: Jackson's preemptive schedule, as in Carlier and Pinson, "An
/// algorithm for solving the job-shop problem", Management Science 35 (1989).
[[nodiscard]] double lower_bound(const Shape& shape,
                                 const Cost& cost,
                                 Objective objective,
                                 double memory_limit = std::numeric_limits<double>::infinity(),
                                 const Stop& stop = {},
                                 const std::vector<bool>& recompute = {});

}  // namespace millrace
