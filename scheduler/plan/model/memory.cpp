// The three-part memory model: a_F from the start of F, g_I and a_I inside and at the end of I, the
// rest at the end of W; B is I and W in one.
#include "plan/model/memory.hpp"

#include <algorithm>

#include "millrace/scheduler/plan/simulate.hpp"
#include "plan/model/validate.hpp"

namespace millrace::plan {

namespace {

double value(const std::vector<double>& by_stage, const Action& action) {
  return by_stage.empty() ? 0 : by_stage[action.stage.index()];
}

}  // namespace

MemoryModel::MemoryModel(const Program& program, const Cost& cost)
    : program_(&program), cost_(&cost) {
  for (const auto& list : program.ranks)
    for (const Action& action : list) {
      if (action.op != Op::Recompute) continue;
      if (recomputed_.empty())
        recomputed_.resize(static_cast<std::size_t>(program.shape.forwards()));
      recomputed_[at(action)] = true;
    }
  if (!cost.tree_of_sums || cost.gradient_bytes.empty()) return;
  const Shape& shape = program.shape;
  sums_.resize(static_cast<std::size_t>(shape.forwards()));
  trees_.assign(static_cast<std::size_t>(shape.stages()),
                TreeReplay(cost.passes * shape.micro_batches, shape.slices));
  held_.resize(program.ranks.size());
  replay_sums();
}

void MemoryModel::next_pass() {
  ++pass_;
  if (!sums_.empty()) replay_sums();
}

/// What the trees of sums hold, in the order in which the program's lists add to them.
void MemoryModel::replay_sums() {
  const Shape& shape = program_->shape;
  for (std::size_t rank = 0; rank < program_->ranks.size(); ++rank) {
    held_[rank] = 0;
    std::vector<bool> seen(trees_.size(), false);
    for (const Action& action : program_->ranks[rank]) {
      if (!gives_weight_gradient(action.op)) continue;
      const std::size_t stage = action.stage.index();
      const SumsHeld& held = sums_[at(action)] =
          trees_[stage].pass(pass_ * shape.micro_batches + action.micro_batch.value);
      if (!seen[stage]) held_[rank] += held.before * cost_->gradient_bytes[stage];
      seen[stage] = true;
    }
  }
}

/// With the sums of a B or W, which gives back its activations before its sum is made.
MemoryChange MemoryModel::with_sums(const Action& action, MemoryChange change) const {
  if (sums_.empty() || !gives_weight_gradient(action.op)) return change;
  const SumsHeld& held = sums_[at(action)];
  const auto more = [&](int count) {
    return (count - held.before) * cost_->gradient_bytes[action.stage.index()];
  };
  change.transient = std::max(
      {more(held.opening), more(held.during) + change.transient, more(held.joining) + change.end});
  change.end += more(held.after);
  return change;
}

std::size_t MemoryModel::at(const Action& action) const {
  const auto micro_batches = static_cast<std::size_t>(program_->shape.micro_batches);
  const auto slices = static_cast<std::size_t>(program_->shape.slices);
  return (action.stage.index() * micro_batches + action.micro_batch.index()) * slices +
         action.slice.index();
}

bool MemoryModel::recomputed(const Action& action) const {
  return !recomputed_.empty() && recomputed_[at(action)];
}

MemoryChange MemoryModel::change(const Action& action) const {
  const Cost& c = *cost_;
  const double share = c.slices;  // divided at the end: whole micro-batches stay exact
  MemoryChange result;
  switch (action.op) {
    case Op::Forward:
      if (program_->shape.forward_only) break;  // nothing is kept for a backward
      result.start = value(recomputed(action) ? c.memory_boundary : c.memory_forward, action);
      result.transient = std::max(0.0, value(c.memory_forward_peak, action) - result.start);
      break;
    case Op::Recompute:
      result.start = value(c.memory_forward, action) - value(c.memory_boundary, action);
      result.transient =
          std::max(0.0, value(c.memory_forward_peak, action) - value(c.memory_forward, action));
      break;
    case Op::Backward:  // the gradients that its I keeps for its W live inside it
      result.transient =
          std::max({0.0, value(c.memory_input_peak, action), value(c.memory_input, action)});
      result.end = value(c.memory_input, action) + value(c.memory_weight, action);
      break;
    case Op::BackwardInput:
      result.transient = std::max(0.0, value(c.memory_input_peak, action));
      result.end = value(c.memory_input, action);
      break;
    case Op::BackwardWeight:
      result.end = value(c.memory_weight, action);
      break;
    case Op::SendForward:
    case Op::RecvForward:
    case Op::SendBackward:
    case Op::RecvBackward:
    case Op::ReduceGrad:
    case Op::OptimizerStep:
      break;
  }
  return with_sums(action, {result.start / share, result.transient / share, result.end / share});
}

int MemoryModel::stashes_taken(const Action& action) const {
  if (action.op == Op::Recompute) return 1;
  if (program_->shape.forward_only) return 0;
  return action.op == Op::Forward && !recomputed(action) ? 1 : 0;
}

int MemoryModel::stashes_dropped(const Action& action) const {
  return gives_weight_gradient(action.op) ? 1 : 0;
}

MemoryPeak peak_memory(const Program& program,
                       const Cost& cost,
                       const MemoryModel& model,
                       Rank rank) {
  const auto list = program.on(rank);
  MemoryPeak peak;
  double level = model.held(rank);
  int stashes = 0, most = 0;
  const auto reach = [&](double bytes, std::size_t position) {
    if (bytes <= peak.bytes) return;
    peak.bytes = bytes;
    peak.position = position;
  };
  for (std::size_t i = 0; i < list.size();) {
    // The halves of an atomic pair hold their memory together.
    std::size_t end = i + 1;
    if (cost.pair.at(list, i) >= 0) ++end;
    double transient = 0;
    for (std::size_t j = i; j < end; ++j) {
      const MemoryChange change = model.change(list[j]);
      level += change.start;
      transient += change.transient;
      stashes += model.stashes_taken(list[j]);
    }
    most = std::max(most, stashes);
    reach(level + std::max(0.0, transient), i);
    for (; i < end; ++i) {
      level += model.change(list[i]).end;
      stashes -= model.stashes_dropped(list[i]);
    }
    reach(level, end - 1);
  }
  peak.left = level;
  const double stages = program.shape.stages();
  peak.activation = double{1} * most * program.shape.ranks / (stages * program.shape.slices);
  return peak;
}

std::vector<MemoryPeak> memory_peaks(const Program& program, const Cost& cost) {
  MemoryModel model(program, cost);
  std::vector<MemoryPeak> peaks(program.ranks.size());
  for (int pass = 0; pass < model.passes(); ++pass) {
    if (pass > 0) model.next_pass();
    for (std::size_t r = 0; r < peaks.size(); ++r) {
      MemoryPeak of_pass = peak_memory(program, cost, model, Rank{static_cast<std::int32_t>(r)});
      MemoryPeak& peak = peaks[r];
      if (pass > 0 && of_pass.bytes <= peak.bytes) {
        of_pass.bytes = peak.bytes;
        of_pass.position = peak.position;
      }
      peak = of_pass;
    }
  }
  return peaks;
}

}  // namespace millrace::plan

namespace millrace {

std::vector<std::vector<MemoryStep>> memory_over_time(const Graph& graph,
                                                      const Cost& cost,
                                                      const Timeline& timeline) {
  const Program& program = graph.program();
  cost.require_fits(program.shape);
  plan::require_aligned(program, timeline);
  plan::MemoryModel model(program, cost);
  for (int pass = 1; pass < model.passes(); ++pass) model.next_pass();
  std::vector<std::vector<MemoryStep>> result(program.ranks.size());
  for (std::size_t r = 0; r < result.size(); ++r) {
    std::vector<MemoryStep>& steps = result[r];
    for (std::size_t i = 0; i < program.ranks[r].size(); ++i) {
      const auto change = model.change(program.ranks[r][i]);
      const Interval& interval = timeline.ranks[r].at(i);
      const auto add = [&](double tick, double bytes) {
        if (bytes != 0) steps.push_back({tick / timeline.ticks_per_unit, bytes});
      };
      add(interval.start, change.start + change.transient);
      add(interval.end, change.end - change.transient);
    }
    std::stable_sort(steps.begin(), steps.end(), [](const MemoryStep& a, const MemoryStep& b) {
      return a.time < b.time;
    });
    double level = model.held(Rank{static_cast<std::int32_t>(r)});
    for (MemoryStep& step : steps) step.bytes = level += step.bytes;
  }
  return result;
}

}  // namespace millrace
