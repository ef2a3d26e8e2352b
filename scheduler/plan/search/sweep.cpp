// The points of a sweep and their figures; text of the rows is in sweep_text.cpp.
#include "millrace/scheduler/plan/sweep.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/optimum.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/verify.hpp"

namespace millrace {

namespace {

Cost cost_at(const SweepPoint& point, const Shape& shape) {
  return cost_of(shape, costs_that_apply(point.costs, shape));
}

/// Simulates and verifies the program of a row.
void fill(SweepRow& row, const Program& program, const SweepPoint& point) {
  const Graph graph(program);
  const Cost cost = cost_at(point, program.shape);
  row.report = report(graph, cost, std::get<Timeline>(simulate(graph, cost)));
  VerifyOptions checks;
  if (point.memory_limit) {
    checks.memory_limit = {*point.memory_limit};
    checks.cost = cost;
  }
  const std::vector<Violation> violations = verify(graph, checks);
  row.valid = violations.empty();
  if (!row.valid) row.reason = violations.front().message;
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

/// The counts for an entry: those asked for when it takes them, else one that is unset.
std::vector<std::optional<int>> counts_for(bool takes, const std::vector<int>& counts) {
  if (!takes || counts.empty()) return {std::nullopt};
  return {counts.begin(), counts.end()};
}

/// The points of one schedule and its counts: copies, costs and limits.
void add_points(SweepPoint point, const SweepSpace& space, std::vector<SweepPoint>& points) {
  for (const int replicas : space.data_parallel)
    for (const Costs& costs : space.costs)
      for (const std::optional<MemoryLimit>& limit : space.limits) {
        point.costs = costs;
        point.costs.data_parallel = replicas;
        point.memory_limit.reset();
        if (limit)
          point.memory_limit = memory_limits(*limit, costs, point.ranks, point.ranks).front();
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
  ScheduleOptions options{.ranks = point.ranks,
                          .micro_batches = point.micro_batches,
                          .chunks = point.chunks,
                          .slices = point.slices,
                          .stop = stop};
  if (find_schedule(point.schedule).takes("memory_limit"))
    options.memory_limit = point.memory_limit;
  return generate(point.schedule, options, point.costs);
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

std::vector<SweepPoint> sweep_points(const SweepSpace& space) {
  require(!space.schedules.empty(), "a sweep needs at least one schedule");
  require(!space.costs.empty() && !space.limits.empty(),
          "a sweep needs at least one set of costs and one memory limit (or none at all)");
  require_counts("ranks", space.ranks, false);
  require_counts("micro_batches", space.micro_batches, false);
  require_counts("chunks", space.chunks, true);
  require_counts("slices", space.slices, true);
  require_counts("data_parallel", space.data_parallel, false);
  for (const Costs& costs : space.costs) {
    require_counts("accumulate", {costs.accumulate}, false);
    require_consistent(costs);
  }
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
        for (const auto chunks : counts_for(entry.takes("chunks"), space.chunks))
          for (const auto slices : counts_for(entry.takes("slices"), space.slices))
            add_points({schedule, ranks, micro_batches, chunks, slices}, space, points);
  }
  return points;
}

SweepRow evaluate(const SweepPoint& point, const Stop& stop) {
  if (stop && stop()) throw Stopped("the sweep was stopped");
  SweepRow row{.point = point};
  try {
    Program order = program_of(point, stop);
    if (point.relisted) order = relist_within_own_memory(order, cost_at(point, order.shape));
    const Program program = insert_reductions(std::move(order), point.costs.data_parallel);
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
