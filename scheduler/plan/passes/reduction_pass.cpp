// Places gradient reductions: in one global order, so that no two ranks meet the same reductions in
// different orders, and each as early as all its copies are done in a run with F = I = W = 1.
#include <algorithm>
#include <string>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "plan/model/reductions.hpp"
#include "plan/simulate/clock.hpp"
#include "plan/verify/cycle.hpp"

namespace millrace {

namespace {

/// A group of copies that reduce together, and when the last of them is done.
struct Meeting {
  std::vector<plan::Copy> copies;
  double tick = 0;
};

Timeline run_for_reductions(const Graph& graph) {
  const Cost cost = Cost::unit(graph.program().shape);
  plan::Clock clock(graph, cost);
  if (clock.run()) return clock.take();
  const Deadlock deadlock =
      plan::deadlock(graph, plan::shortest_cycle({&graph, {}, nullptr}, clock.next()));
  throw InvalidArgument("reductions cannot be inserted: the order of the program has a cycle: " +
                        deadlock.message());
}

bool reduces(const Program& program) {
  for (const auto& list : program.ranks)
    for (const Action& action : list)
      if (action.op == Op::ReduceGrad) return true;
  return false;
}

/// By stage: whether it has a REDUCE_GRAD. Requires actions inside the shape.
std::vector<bool> reduced_stages(const Program& program) {
  std::vector<bool> reduced(static_cast<std::size_t>(program.shape.stages()), false);
  for (const auto& list : program.ranks)
    for (const Action& action : list)
      if (action.op == Op::ReduceGrad) reduced[action.stage.index()] = true;
  return reduced;
}

/// One meeting per group that owes a reduction, by time and then by lowest stage.
std::vector<Meeting> meetings(const Program& program,
                              const Timeline& run,
                              const StageGraph& graph,
                              bool every_stage) {
  std::vector<double> last(static_cast<std::size_t>(program.shape.stages()), 0);
  for (std::size_t r = 0; r < run.ranks.size(); ++r)
    for (std::size_t i = 0; i < run.ranks[r].size(); ++i) {
      const Action& action = program.ranks[r][i];
      if (!gives_weight_gradient(action.op)) continue;
      double& tick = last[action.stage.index()];
      tick = std::max(tick, run.ranks[r][i].end);
    }
  const auto groups = plan::reduction_groups(program.shape, graph);
  std::vector<Meeting> result;
  for (std::size_t stage = 0; stage < groups.size(); ++stage) {
    const bool first_of_group = groups[stage].front().stage.index() == stage;
    if (!first_of_group || !(every_stage || plan::owes_reduction(groups[stage], graph))) continue;
    Meeting meeting{groups[stage], 0};
    for (const plan::Copy& copy : meeting.copies)
      meeting.tick = std::max(meeting.tick, last[copy.stage.index()]);
    result.push_back(meeting);
  }
  std::stable_sort(result.begin(), result.end(), [](const Meeting& a, const Meeting& b) {
    return a.tick < b.tick;
  });
  return result;
}

/// Copies the lists up to a point of the run.
class Copier {
 public:
  Copier(const Graph& graph, const Timeline& run)
      : graph_(graph), run_(run), next_(run.ranks.size(), 0) {
    result_ = {graph.program().shape, {}, graph.program().name};
    result_.ranks.resize(next_.size());
  }

  /// Copies what happens on a rank before `tick`, then adds `action`. Messages of that very tick
  /// count as before on both ranks, so that sends that wait for their receive still meet.
  void place(Rank rank, double tick, const Action& action) {
    const auto& list = graph_.program().on(rank);
    std::size_t end = next_[rank.index()];
    for (std::size_t i = end; i < list.size() && !starts_later(rank, i, tick); ++i) end = i + 1;
    while (end < list.size() && end > 0 && list[end - 1].with_next) ++end;
    copy(rank, end);
    result_.ranks[rank.index()].push_back(action);
  }

  Program finish() {
    for (std::size_t r = 0; r < next_.size(); ++r)
      copy(Rank{static_cast<std::int32_t>(r)}, graph_.program().ranks[r].size());
    return std::move(result_);
  }

 private:
  [[nodiscard]] bool starts_later(Rank rank, std::size_t position, double tick) const {
    const Action& action = graph_.program().on(rank)[position];
    const Interval& interval = run_.ranks[rank.index()][position];
    if (is_send(action.op)) return interval.end > tick;
    if (!is_receive(action.op)) return interval.start >= tick;
    const auto sends = graph_.producers(graph_.first(rank) + static_cast<Node>(position));
    if (sends.empty()) return interval.end > tick;
    const Rank source = graph_.rank(sends.front());
    return run_.ranks[source.index()][graph_.position(sends.front())].end > tick;
  }

  void copy(Rank rank, std::size_t end) {
    const auto& list = graph_.program().ranks[rank.index()];
    std::size_t& next = next_[rank.index()];
    auto& out = result_.ranks[rank.index()];
    out.insert(out.end(),
               list.begin() + static_cast<std::ptrdiff_t>(next),
               list.begin() + static_cast<std::ptrdiff_t>(end));
    next = end;
  }

  const Graph& graph_;
  const Timeline& run_;
  std::vector<std::size_t> next_;
  Program result_;
};

Action reduction_of(const plan::Copy& copy) {
  return {
      Op::ReduceGrad, false, static_cast<std::uint8_t>(copy.replica.value), 0, copy.stage, {}, {}};
}

/// Behind everything but the optimizer's step, for the stages that have none yet: all, or those
/// that owe one.
Program reduced_at_the_end(const Program& program, bool every_stage) {
  const Graph graph(program);  // checks the actions
  const std::vector<bool> reduced = reduced_stages(program);
  if (std::ranges::find(reduced, false) == reduced.end()) return program;
  const Timeline run = run_for_reductions(graph);
  Program result = program;
  for (const Meeting& meeting : meetings(program, run, graph.stage_graph(), every_stage))
    for (const plan::Copy& copy : meeting.copies) {
      if (reduced[copy.stage.index()]) continue;
      auto& list = result.ranks[program.shape.rank(copy.replica, copy.stage).index()];
      const bool steps = !list.empty() && list.back().op == Op::OptimizerStep;
      list.insert(list.end() - (steps ? 1 : 0), reduction_of(copy));
    }
  return result;
}

}  // namespace

Program insert_reductions(Program program) {
  if (program.shape.forward_only || reduces(program)) return program;
  const Graph graph(program);
  const Timeline run = run_for_reductions(graph);
  Copier copier(graph, run);
  for (const Meeting& meeting : meetings(program, run, graph.stage_graph(), false))
    for (const plan::Copy& copy : meeting.copies)
      copier.place(program.shape.rank(copy.replica, copy.stage), meeting.tick, reduction_of(copy));
  return copier.finish();
}

Program insert_late_reductions(Program program) {
  if (program.shape.forward_only || reduces(program)) return program;
  return reduced_at_the_end(program, false);
}

Program insert_reductions(Program program, int pipelines) {
  require(pipelines >= 1,
          "a pipeline is trained in 1 copy or more, got " + std::to_string(pipelines));
  if (pipelines == 1) return insert_reductions(std::move(program));
  return program.shape.forward_only ? program : reduced_at_the_end(program, true);
}

}  // namespace millrace
