// The points of a sweep and their figures; text of the rows is in sweep_text.cpp.
#include "millrace/scheduler/plan/sweep.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/list_schedule.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/simulate.hpp"
#include "millrace/scheduler/plan/verify.hpp"

namespace millrace {

namespace {

constexpr int kMostDecimals = 9;

/// Whole times are exact in the simulator: the power of ten that makes these whole, if any does.
double scale_of(const SweepCosts& costs) {
  double scale = 1;
  const auto whole = [&](double time) {
    return std::abs(time * scale - std::round(time * scale)) < 1e-6;
  };
  for (int decimals = 0; decimals <= kMostDecimals; ++decimals, scale *= 10)
    if (whole(costs.forward) && whole(costs.input) && whole(costs.weight) && whole(costs.latency))
      return scale;
  return 1;
}

void set_memory(Cost& cost, const Shape& shape, const SweepCosts& costs) {
  const double share = static_cast<double>(shape.ranks) / shape.stages();
  const std::vector<double> ones(static_cast<std::size_t>(shape.stages()), share);
  cost.memory_forward = cost.memory_input = cost.memory_input_peak = cost.memory_weight = ones;
  for (std::size_t s = 0; s < ones.size(); ++s) {
    cost.memory_forward[s] *= costs.memory_forward;
    cost.memory_input[s] *= costs.memory_input;
    cost.memory_input_peak[s] *= std::max(0.0, costs.memory_input);
    cost.memory_weight[s] *= costs.memory_weight;
  }
}

/// What the file says, but the latency that the sweep varies.
Cost filed_cost(const Shape& shape, const SweepCosts& costs) {
  Cost cost = costs_for(*costs.file, shape);
  cost.latency = costs.latency * cost.ticks_per_unit;
  if (cost.memory_forward.empty()) set_memory(cost, shape, costs);
  return cost;
}

Cost timed_cost(const Shape& shape, const SweepCosts& costs) {
  const double scale = scale_of(costs);
  const auto ticks = [&](double time) { return scale == 1 ? time : std::round(time * scale); };
  Cost cost = Cost::of_full_stage(
      shape, ticks(costs.forward), ticks(costs.input), ticks(costs.weight), ticks(costs.latency));
  cost.ticks_per_unit *= scale;
  set_memory(cost, shape, costs);
  return cost;
}

Cost cost_of(const Shape& shape, const SweepCosts& costs) {
  return costs.file ? filed_cost(shape, costs) : timed_cost(shape, costs);
}

/// With the sums over copies of the pipeline, where the file does not say what they add.
Cost cost_of(const Shape& shape, const SweepPoint& point) {
  const SweepCosts& costs = point.costs;
  Cost cost = cost_of(shape, costs);
  cost.data_parallel = point.data_parallel;
  cost.passes = costs.accumulate;
  if (cost.gradient_bytes.empty()) {
    const double share = static_cast<double>(shape.ranks) / shape.stages();
    cost.gradient_bytes.assign(static_cast<std::size_t>(shape.stages()),
                               costs.gradient_bytes * share);
  }
  if (costs.bandwidth > 0) cost.bytes_per_tick = costs.bandwidth / cost.ticks_per_unit;
  return cost;
}

ScheduleOptions options_of(const SweepPoint& point) {
  const SweepCosts& costs = point.costs;
  ScheduleOptions options;
  options.ranks = point.ranks;
  options.micro_batches = point.micro_batches;
  if (point.chunks > 0) options.chunks = point.chunks;
  if (point.slices > 0) options.slices = point.slices;
  const ScheduleEntry& entry = find_schedule(point.schedule);
  if (entry.takes("memory_limit")) options.memory_limit = point.memory_limit;
  if (entry.staged && costs.file)
    options.stage_costs = cost_of({.ranks = point.ranks,
                                   .micro_batches = point.micro_batches,
                                   .placement = Placement::straight(point.ranks)},
                                  costs);
  options.forward = costs.forward;
  options.input = costs.input;
  options.weight = costs.weight;
  options.latency = costs.latency;
  options.memory_forward = costs.memory_forward;
  options.memory_input = costs.memory_input;
  options.memory_weight = costs.memory_weight;
  options.memory_input_peak = costs.memory_input_peak;
  return options;
}

/// Simulates and verifies the program of a row.
void fill(SweepRow& row, const Program& program, const SweepPoint& point) {
  const Graph graph(program);
  const Cost cost = cost_of(program.shape, point);
  row.report = report(graph, cost, std::get<Timeline>(simulate(graph, cost)));
  VerifyOptions checks;
  if (point.memory_limit) {
    checks.memory_limit = {*point.memory_limit};
    checks.cost = cost;
  }
  const std::vector<Violation> violations = verify(graph, checks);
  row.valid = violations.empty();
  if (!row.valid) row.reason = violations.front().sentence;
  row.same_bits = accumulation(program).ascending;
}

void require_counts(const char* name, const std::vector<int>& counts, bool may_be_empty) {
  require(may_be_empty || !counts.empty(), "a sweep needs at least one value of " + named(name));
  for (const int count : counts)
    require(count >= 1,
            "a sweep's " + named(name) + " is " + std::to_string(count) + "; expected at least 1");
}

void require_taken(const SweepSpace& space, const char* parameter, const std::vector<int>& counts) {
  require(counts.empty() || std::any_of(space.schedules.begin(),
                                        space.schedules.end(),
                                        [&](const std::string& schedule) {
                                          return !space.plans.contains(schedule) &&
                                                 find_schedule(schedule).takes(parameter);
                                        }),
          named(parameter) + " was given, but none of the schedules takes it");
}

double limit_of(const SweepLimit& limit, int ranks, const SweepCosts& costs) {
  return limit.times_ranks ? limit.value * ranks * costs.memory_forward : limit.value;
}

/// The counts for an entry: those asked for when it takes them, else one that says nothing.
std::vector<int> counts_for(bool takes, const std::vector<int>& counts) {
  return takes && !counts.empty() ? counts : std::vector<int>{0};
}

/// The points of one schedule and its counts: copies, costs and limits.
void add_points(SweepPoint point, const SweepSpace& space, std::vector<SweepPoint>& points) {
  for (const int copies : space.data_parallel)
    for (const SweepCosts& costs : space.costs)
      for (const std::optional<SweepLimit>& limit : space.limits) {
        point.data_parallel = copies;
        point.costs = costs;
        point.memory_limit.reset();
        if (limit) point.memory_limit = limit_of(*limit, point.ranks, costs);
        point.relisted = !point.program && find_schedule(point.schedule).relisted;
        if (point.relisted) points.push_back(point);
        point.relisted = false;
        points.push_back(point);
      }
}

/// Of a program that is there, with its own counts.
SweepPoint point_of(const std::string& name, std::shared_ptr<const Program> program) {
  const Shape& shape = program->shape;
  return {.schedule = name,
          .ranks = shape.ranks,
          .micro_batches = shape.micro_batches,
          .chunks = shape.chunks(),
          .slices = shape.slices,
          .program = std::move(program)};
}

Program program_of(const SweepPoint& point, const Stop& stop) {
  if (point.program) return *point.program;
  ScheduleOptions options = options_of(point);
  options.stop = stop;
  return generate(point.schedule, options);
}

/// Hands out points and gives the rows on in order.
/// Thread-safety: internally synchronised, any thread.
class Rows {
 public:
  Rows(const std::vector<SweepPoint>& points,
       const std::function<void(const SweepRow&)>& row,
       const Stop& stop)
      : points_(points), row_(row), stop_(stop), done_(points.size()) {}

  /// Evaluates points until none is left or something was thrown.
  void work() noexcept {
    try {
      for (std::size_t i = next_++; i < points_.size(); i = next_++)
        finish(i, evaluate(points_[i], stop_));
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
      next_ = points_.size();
    }
  }

  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void finish(std::size_t index, SweepRow row) {
    const std::lock_guard lock(mutex_);
    if (failure_) return;  // nobody reads on
    done_[index] = std::move(row);
    try {
      for (; given_ < done_.size() && done_[given_]; done_[given_++].reset()) row_(*done_[given_]);
    } catch (...) {
      failure_ = std::current_exception();
      next_ = points_.size();
    }
  }

  const std::vector<SweepPoint>& points_;
  const std::function<void(const SweepRow&)>& row_;
  const Stop& stop_;
  std::atomic<std::size_t> next_ = 0;
  std::mutex mutex_;  // guards what follows, and calls of row_
  std::vector<std::optional<SweepRow>> done_;
  std::size_t given_ = 0;
  std::exception_ptr failure_;
};

}  // namespace

SweepCosts sweep_costs(CostFile file, std::string name) {
  const Cost& cost = file.cost;
  const auto mean = [&](const std::vector<double>& list) {
    return std::accumulate(list.begin(), list.end(), 0.0) / file.ranks;
  };
  SweepCosts costs;
  costs.forward = mean(cost.forward) / cost.ticks_per_unit;
  costs.input = mean(cost.backward_input) / cost.ticks_per_unit;
  costs.weight = mean(cost.backward_weight) / cost.ticks_per_unit;
  costs.latency = cost.latency / cost.ticks_per_unit;
  costs.bandwidth = cost.bytes_per_tick * cost.ticks_per_unit;
  costs.gradient_bytes = mean(cost.gradient_bytes);
  if (!cost.memory_forward.empty()) {
    costs.memory_forward = mean(cost.memory_forward);
    costs.memory_input = mean(cost.memory_input);
    costs.memory_weight = mean(cost.memory_weight);
    if (!cost.memory_input_peak.empty()) costs.memory_input_peak = mean(cost.memory_input_peak);
  }
  costs.file = std::make_shared<const CostFile>(std::move(file));
  costs.file_name = std::move(name);
  return costs;
}

std::vector<SweepPoint> sweep_points(const SweepSpace& space) {
  require(!space.schedules.empty(), "a sweep needs at least one schedule");
  require(!space.costs.empty() && !space.limits.empty(),
          "a sweep needs at least one set of costs and one memory limit (or none at all)");
  require_counts("ranks", space.ranks, false);
  require_counts("micro_batches", space.micro_batches, false);
  require_counts("chunks", space.chunks, true);
  require_counts("slices", space.slices, true);
  require_counts("data_parallel", space.data_parallel, false);
  for (const SweepCosts& costs : space.costs)
    require_counts("accumulate", {costs.accumulate}, false);
  require_taken(space, "chunks", space.chunks);
  require_taken(space, "slices", space.slices);
  std::vector<SweepPoint> points;
  for (const std::string& schedule : space.schedules) {
    if (const auto plan = space.plans.find(schedule); plan != space.plans.end()) {
      add_points(point_of(schedule, plan->second), space, points);
      continue;
    }
    const ScheduleEntry& entry = find_schedule(schedule);
    for (const int ranks : space.ranks)
      for (const int micro_batches : space.micro_batches)
        for (const int chunks : counts_for(entry.takes("chunks"), space.chunks))
          for (const int slices : counts_for(entry.takes("slices"), space.slices))
            add_points({schedule, ranks, micro_batches, chunks, slices}, space, points);
  }
  return points;
}

SweepRow evaluate(const SweepPoint& point, const Stop& stop) {
  if (stop && stop()) throw Stopped("the sweep was stopped");
  SweepRow row{.point = point};
  try {
    Program order = program_of(point, stop);
    if (point.relisted) order = relist_within_own_memory(order, cost_of(order.shape, point));
    const Program program = insert_reductions(std::move(order), point.data_parallel);
    fill(row, program, point);
    if (point.relisted) row.point.schedule += " + relist";
    row.point.chunks = program.shape.chunks();
    row.point.slices = program.shape.slices;
  } catch (const InvalidArgument& refusal) {
    row.reason = refusal.what();
  }
  return row;
}

void sweep(const std::vector<SweepPoint>& points,
           int threads,
           const std::function<void(const SweepRow&)>& row,
           const Stop& stop) {
  require(threads >= 1, "a sweep runs on at least 1 thread; got " + std::to_string(threads));
  Rows rows(points, row, stop);
  {
    std::vector<std::jthread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back([&rows] { rows.work(); });
    rows.work();
  }
  rows.rethrow();
}

}  // namespace millrace
