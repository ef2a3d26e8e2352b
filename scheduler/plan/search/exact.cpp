// The layered search over cuts: a narrow run for a good value, then the full run for the proof.
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/optimum.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "plan/schedules/list_order.hpp"
#include "plan/search/cut.hpp"
#include "plan/search/relist.hpp"

namespace millrace {

namespace plan {

namespace {

constexpr double kUnbounded = std::numeric_limits<double>::infinity();
constexpr std::uint32_t kRoot = 0xFFFFFFFFU;

/// How a state was reached, kept for every state so that the order can be read back.
struct Trace {
  std::uint32_t parent = kRoot;
  std::uint8_t cls = 0;
};

struct State {
  CutCounts counts;
  std::size_t times = 0;  // offset into the layer's array
  double bound = 0;
  std::uint32_t trace = kRoot;
  bool dropped = false;
};

/// All states with the same number of actions run; of one cut only those that none dominates.
class Layer {
 public:
  explicit Layer(std::size_t width) : width_(width) {}

  [[nodiscard]] std::span<const double> times(const State& state) const {
    return {times_.data() + state.times, width_};
  }
  [[nodiscard]] std::vector<State>& states() { return states_; }

  /// Adds a state unless one with the same cut dominates it; returns whether it was added.
  bool add(State state, std::span<const double> times) {
    std::vector<std::uint32_t>& peers = by_cut_[state.counts];
    for (const std::uint32_t peer : peers)
      if (at_most(this->times(states_[peer]), times)) return false;
    std::erase_if(peers, [&](std::uint32_t peer) {
      const bool worse = at_most(times, this->times(states_[peer]));
      if (worse) states_[peer].dropped = true;
      return worse;
    });
    peers.push_back(static_cast<std::uint32_t>(states_.size()));
    state.times = times_.size();
    times_.insert(times_.end(), times.begin(), times.end());
    states_.push_back(std::move(state));
    return true;
  }

  /// Keeps the `beam` states of the smallest bounds; returns whether all were kept.
  bool narrow(std::size_t beam) {
    std::erase_if(states_, [](const State& state) { return state.dropped; });
    if (states_.size() <= beam) return true;
    std::ranges::stable_sort(states_, {}, &State::bound);
    states_.resize(beam);
    return false;
  }

 private:
  static bool at_most(std::span<const double> a, std::span<const double> b) {
    for (std::size_t i = 0; i < a.size(); ++i)
      if (a[i] > b[i]) return false;
    return true;
  }

  std::size_t width_;
  std::vector<State> states_;
  std::vector<double> times_;
  std::unordered_map<CutCounts, std::vector<std::uint32_t>> by_cut_;
};

/// The search on one job. `best` only ever improves.
class Solver {
 public:
  Solver(const Job& job, CutRules& rules, Objective objective, std::int64_t state_limit)
      : job_(job), rules_(rules), objective_(objective), state_limit_(state_limit) {}

  void offer(const JobOrder& order, const Figures& figures) {
    if (figures.value(objective_) >= value_) return;
    value_ = figures.value(objective_);
    order_ = order;
  }

  /// One run over all layers with at most `beam` states each. Returns what no completion of the
  /// states that were dropped unproved can beat: infinity when the run is a proof.
  double run(std::size_t beam);

  [[nodiscard]] double value() const { return value_; }
  [[nodiscard]] const JobOrder& order() const { return order_; }
  [[nodiscard]] std::int64_t states() const { return states_; }

 private:
  bool expand(Layer& from, Layer& into);
  void finish(Layer& last);
  [[nodiscard]] double cut_off() const {
    return value_ == kUnbounded ? kUnbounded : value_ - 1e-9 * std::abs(value_);
  }

  const Job& job_;
  CutRules& rules_;
  Objective objective_;
  std::int64_t state_limit_;
  double value_ = kUnbounded;
  JobOrder order_;
  std::int64_t states_ = 0;
  std::vector<Trace> traces_;
};

double smallest_bound(std::vector<State>& states) {
  double bound = kUnbounded;
  for (const State& state : states)
    if (!state.dropped) bound = std::min(bound, state.bound);
  return bound;
}

double Solver::run(std::size_t beam) {
  traces_.clear();
  Layer layer(rules_.width());
  CutTimes times = rules_.begin();
  State root{.counts = CutCounts(rules_.classes(), '\0')};
  root.bound = rules_.settle(root.counts, times, cut_off());
  layer.add(root, times);
  for (std::size_t done = 0; done < job_.size(); ++done) {
    Layer next(rules_.width());
    if (!expand(layer, next))
      return std::min(smallest_bound(layer.states()), smallest_bound(next.states()));
    next.narrow(beam);
    layer = std::move(next);
  }
  finish(layer);
  return kUnbounded;
}

/// False when the limit of states was reached.
bool Solver::expand(Layer& from, Layer& into) {
  std::vector<std::size_t> branches;
  CutTimes times(rules_.width());
  for (State& state : from.states()) {
    if (state.dropped || state.bound >= cut_off()) continue;
    job_.spend(256);
    rules_.branches(state.counts, from.times(state), branches);
    for (const std::size_t cls : branches) {
      const auto old = from.times(state);
      times.assign(old.begin(), old.end());
      State child{.counts = state.counts, .trace = static_cast<std::uint32_t>(traces_.size())};
      rules_.apply(cls, child.counts, times);
      child.bound = std::max(state.bound, rules_.settle(child.counts, times, cut_off()));
      if (child.bound >= cut_off() || !into.add(std::move(child), times)) continue;
      traces_.push_back({state.trace, static_cast<std::uint8_t>(cls)});
      if (++states_ >= state_limit_) return false;
    }
  }
  return true;
}

void Solver::finish(Layer& last) {
  for (const State& state : last.states()) {
    if (state.dropped || state.bound >= cut_off()) continue;
    std::vector<std::size_t> classes;
    for (std::uint32_t at = state.trace; at != kRoot; at = traces_[at].parent)
      classes.push_back(traces_[at].cls);
    std::vector<JobOrder> ranks(static_cast<std::size_t>(job_.ranks()));
    std::vector<std::size_t> counts(rules_.classes(), 0);
    for (std::size_t i = classes.size(); i-- > 0;) {
      const Node node = rules_.node(classes[i], counts[classes[i]]++);
      ranks[job_.rank(node)].push_back(node);
    }
    JobOrder order;
    for (const JobOrder& rank : ranks) order.insert(order.end(), rank.begin(), rank.end());
    Evaluator evaluator(job_, objective_);
    evaluator.reset(order);
    offer(order, evaluator.figures(order));
  }
}

/// A first value: relisting everything, forwards first and depth first.
void offer_lists(const Job& job, const ExactOptions& options, Solver& solver) {
  std::int64_t evaluations = 0;
  const RelistOptions relist{options.memory_limit, options.objective, 6};
  std::vector<double> priority(job.size());
  for (Node node = 0; node < job.size(); ++node)
    priority[node] = job.action(node).micro_batch.value;
  for (const WeightRule rule : {WeightRule::Filler, WeightRule::FitsGap}) {
    const auto order = list_order(job, {priority, options.memory_limit, rule});
    if (!order) continue;
    const auto listed = relist_order(job, *order, relist, evaluations);
    if (listed) solver.offer(listed->order, listed->figures);
  }
}

}  // namespace

}  // namespace plan

ExactResult solve_exact(const Shape& shape, const Cost& cost, const ExactOptions& options) {
  require(shape.replicas() == 1 && shape.slices == 1 && !shape.forward_only,
          "solve_exact takes one replica, one slice and a backward; the shape has " +
              std::to_string(shape.replicas()) + " replicas and " + std::to_string(shape.slices) +
              " slices");
  require(cost.data_parallel == 1,
          "solve_exact orders the passes of one copy of the pipeline; Cost::data_parallel is " +
              std::to_string(cost.data_parallel));
  require(cost.passes == 1,
          "solve_exact orders the passes of one mini-batch; Cost::passes is " +
              std::to_string(cost.passes));
  plan::Work work(options.stop);
  Program all = plan::everything(shape, options.fused);
  if (!options.recompute.empty()) all = insert_recompute(all, options.recompute);
  const plan::Job job(std::move(all), cost, &work);
  require(shape.micro_batches < 128 && shape.stages() <= 64,
          "solve_exact takes at most 127 micro-batches and 64 stages");
  const plan::Relaxation relaxation(job, options.objective, options.memory_limit);
  ExactResult result;
  result.lower_bound = relaxation.bound() / cost.ticks_per_unit;
  result.proven = !relaxation.fits();
  if (result.proven) return result;
  plan::CutRules rules(job, relaxation, options.memory_limit);
  plan::Solver solver(job, rules, options.objective, options.state_limit);
  plan::offer_lists(job, options, solver);
  for (const std::size_t beam : {std::size_t{16}, std::size_t{128}}) solver.run(beam);
  const double open = solver.run(~std::size_t{0});
  result.states = solver.states();
  result.proven = open == plan::kUnbounded;
  result.value = solver.value() / cost.ticks_per_unit;
  result.lower_bound =
      result.proven
          ? result.value
          : std::max(result.lower_bound, std::min(open, solver.value()) / cost.ticks_per_unit);
  if (solver.value() < plan::kUnbounded) result.program = job.program(solver.order());
  return result;
}

}  // namespace millrace
