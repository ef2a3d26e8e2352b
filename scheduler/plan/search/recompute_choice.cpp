// Walks every rank's memory under a choice; see recompute_choice.hpp.
#include "plan/search/recompute_choice.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>
#include <utility>

#include "plan/model/memory.hpp"
#include "plan/schedules/list_order.hpp"

namespace millrace::plan {

namespace {

// Actions that are looked at for the choices of one program, where all of them are.
constexpr std::size_t kMostLooks = std::size_t{1} << 20U;

/// What recompute of each stage keeps out of memory between F and its backward.
std::vector<double> savings(const Cost& cost, std::size_t stages) {
  std::vector<double> saved(stages, 0);
  for (std::size_t s = 0; s < cost.memory_forward.size(); ++s)
    saved[s] = std::max(
        0.0, cost.memory_forward[s] - (cost.memory_boundary.empty() ? 0 : cost.memory_boundary[s]));
  return saved;
}

/// The levels of a program's ranks as a choice makes them.
class Levels {
 public:
  Levels(const Program& program, const Cost& cost, double limit, Work* work)
      : saved_(savings(cost, static_cast<std::size_t>(program.shape.stages()))),
        limit_(limit),
        work_(work),
        steps_(program.ranks.size()),
        ranks_of_(saved_.size()) {
    const MemoryModel model(program, cost);
    for (std::size_t r = 0; r < program.ranks.size(); ++r)
      for (const Action& action : program.ranks[r]) {
        const std::size_t stage = action.stage.index();
        const MemoryChange change = model.change(action);
        const double saved = saved_[stage] / program.shape.slices;
        Step step{stage, change.start + change.end};
        step.room = std::max(change.start + std::max(0.0, change.transient), step.change);
        step.room_if_chosen = step.room;
        if (action.op == Op::Forward) step.if_chosen = -saved;
        if (action.op == Op::Forward && !cost.memory_forward_peak.empty())
          step.room_if_chosen =
              std::max(step.room, cost.memory_forward_peak[stage] / program.shape.slices + saved);
        if (gives_input_gradient(action.op)) {
          step.if_chosen = saved;
          Action again = action;
          again.op = Op::Recompute;
          step.room_if_chosen = std::max(step.room, model.change(again).transient);
        }
        steps_[r].push_back(step);
        std::vector<std::size_t>& ranks = ranks_of_[stage];
        if (ranks.empty() || ranks.back() != r) ranks.push_back(r);
      }
  }

  /// Whether recompute of the stage keeps anything out of memory.
  [[nodiscard]] bool helps(std::size_t stage) const { return saved_[stage] > 0; }

  [[nodiscard]] bool fits(const RecomputeChoice& choice) const {
    for (std::size_t r = 0; r < steps_.size(); ++r)
      if (!fits(choice, r)) return false;
    return true;
  }

  /// As fits(), where it is known of the ranks that do not have the stage.
  [[nodiscard]] bool fits_around(std::size_t stage, const RecomputeChoice& choice) const {
    return std::ranges::all_of(ranks_of_[stage], [&](std::size_t r) { return fits(choice, r); });
  }

 private:
  struct Step {
    std::size_t stage = 0;
    double change = 0;
    double room = 0;            // the most that it adds at any moment
    double room_if_chosen = 0;  // with a recompute, after `if_chosen`
    double if_chosen = 0;       // before it, by recompute: a backward's comes before its own change
  };

  [[nodiscard]] bool fits(const RecomputeChoice& choice, std::size_t rank) const {
    if (work_ != nullptr) work_->spend(steps_[rank].size());
    double level = 0, peak = 0;
    for (const Step& step : steps_[rank]) {
      const bool chosen = choice[step.stage];
      if (chosen) level += step.if_chosen;
      peak = std::max(peak, level + (chosen ? step.room_if_chosen : step.room));
      level += step.change;
    }
    return within_limit(peak, limit_);
  }

  std::vector<double> saved_;
  double limit_;
  Work* work_;
  std::vector<std::vector<Step>> steps_;            // by rank
  std::vector<std::vector<std::size_t>> ranks_of_;  // by stage
};

RecomputeChoice choice_of(std::size_t number, std::size_t stages) {
  RecomputeChoice choice(stages);
  for (std::size_t s = 0; s < stages; ++s) choice[s] = (number >> s & 1U) != 0;
  return choice;
}

/// All choices that fit and contain no smaller one that does.
std::vector<RecomputeChoice> smallest_choices(const Levels& levels, std::size_t stages) {
  std::vector<std::size_t> numbers(std::size_t{1} << stages);
  std::iota(numbers.begin(), numbers.end(), std::size_t{0});
  std::ranges::stable_sort(numbers, {}, [](std::size_t number) { return std::popcount(number); });
  std::vector<std::size_t> found;
  std::vector<RecomputeChoice> choices;
  for (const std::size_t number : numbers) {
    const auto contains = [&](std::size_t smaller) { return (number & smaller) == smaller; };
    if (std::ranges::any_of(found, contains)) continue;
    RecomputeChoice choice = choice_of(number, stages);
    if (!levels.fits(choice)) continue;
    found.push_back(number);
    choices.push_back(std::move(choice));
  }
  return choices;
}

/// From `choice`, which fits, without the stages that it can do without, asked in this order.
RecomputeChoice given_back(const Levels& levels,
                           RecomputeChoice choice,
                           const std::vector<std::size_t>& order) {
  for (const std::size_t stage : order) {
    if (!choice[stage]) continue;
    choice[stage] = false;
    choice[stage] = !levels.fits_around(stage, choice);
  }
  return choice;
}

double recompute_ticks(const Cost& cost, std::size_t stage) {
  const std::vector<double>& ticks = cost.recompute.empty() ? cost.forward : cost.recompute;
  return ticks[stage * static_cast<std::size_t>(cost.slices)];
}

}  // namespace

std::vector<RecomputeChoice> fitting_choices(const Program& program,
                                             const Cost& cost,
                                             double limit,
                                             Work* work) {
  const auto stages = static_cast<std::size_t>(program.shape.stages());
  const Levels levels(program, cost, limit, work);
  if (stages <= kMostChosenStages && (program.size() << stages) <= kMostLooks)
    return smallest_choices(levels, stages);
  RecomputeChoice all(stages);
  for (std::size_t s = 0; s < stages; ++s) all[s] = levels.helps(s);
  if (!levels.fits(all)) return {};
  std::vector<std::size_t> order(stages);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::vector<RecomputeChoice> choices{given_back(levels, all, order)};
  const auto add = [&] {
    RecomputeChoice choice = given_back(levels, all, order);
    if (std::ranges::find(choices, choice) == choices.end()) choices.push_back(std::move(choice));
  };
  std::ranges::reverse(order);
  add();
  std::ranges::stable_sort(
      order, std::greater<>(), [&](std::size_t stage) { return recompute_ticks(cost, stage); });
  add();
  return choices;
}

std::vector<RecomputeChoice> all_choices(std::size_t stages) {
  std::vector<RecomputeChoice> choices;
  for (std::size_t number = 0; number < std::size_t{1} << stages; ++number)
    choices.push_back(choice_of(number, stages));
  return choices;
}

Cost with_least_memory(Cost cost) {
  const std::vector<double> saved = savings(cost, cost.memory_forward.size());
  for (auto* list : {&cost.memory_input, &cost.memory_input_peak})
    if (list->empty()) list->resize(saved.size(), 0);
  for (std::size_t s = 0; s < saved.size(); ++s) {
    cost.memory_forward[s] -= saved[s];
    cost.memory_input[s] += saved[s];
    cost.memory_input_peak[s] = std::max(0.0, cost.memory_input_peak[s]) + saved[s];
  }
  return cost;
}

}  // namespace millrace::plan
