// How much of the gradient all-reduce overlaps with passes, and does the simulation agree?
// Two copies of four places, a thread each, whose passes sleep and whose gradients travel over
// links as slow as a network's: the part of the step that is not hidden, measured and simulated,
// and how far they are apart as a share of the step.
#include <algorithm>
#include <barrier>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/graph.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/run/executor.hpp"
#include "millrace/scheduler/run/grid.hpp"
#include "millrace/transport/in_process.hpp"

namespace {

using namespace millrace;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr int kCopies = 2;
constexpr int kPlaces = 4;
constexpr int kMicroBatches = 8;
constexpr Seconds kPass(4e-3);           // of a full stage; a chunk's is shorter
constexpr std::int64_t kNumbers = 4096;  // gradients of a full stage
constexpr double kBytesPerSecond = 2e6;  // so that a full stage's sum takes two passes
constexpr Seconds kLatency(1e-3);
constexpr int kSteps = 5;  // the first pays for memory

/// When messages between copies are there: one after the other on the link of two processes.
/// Thread-safety: internally synchronised.
class SlowLinks {
 public:
  void send(Rank from, Rank to, const MessageTag& tag, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    Clock::time_point& free = free_[{from, to}];
    free = std::max(free, Clock::now()) + std::chrono::duration_cast<Clock::duration>(Seconds(
                                              static_cast<double>(bytes) / kBytesPerSecond));
    arrivals_[{from, to, tag}] = free + std::chrono::duration_cast<Clock::duration>(kLatency);
  }

  [[nodiscard]] Clock::time_point arrival(Rank from, Rank to, const MessageTag& tag) {
    const std::lock_guard lock(mutex_);
    const auto found = arrivals_.find({from, to, tag});
    return found == arrivals_.end() ? Clock::time_point::max() : found->second;
  }

 private:
  std::mutex mutex_;  // guards everything
  std::map<std::pair<Rank, Rank>, Clock::time_point> free_;
  std::map<std::tuple<Rank, Rank, MessageTag>, Clock::time_point> arrivals_;
};

/// An endpoint whose collective messages take their time.
class SlowEndpoint final : public Endpoint {
 public:
  SlowEndpoint(std::unique_ptr<Endpoint> inner, SlowLinks& links)
      : inner_(std::move(inner)), links_(links) {}

  [[nodiscard]] Rank rank() const override { return inner_->rank(); }
  [[nodiscard]] int world() const override { return inner_->world(); }
  void send(Rank to, const MessageTag& tag, TensorList payload) override {
    if (tag.direction == Direction::Collective) links_.send(rank(), to, tag, payload.bytes());
    inner_->send(to, tag, std::move(payload));
  }
  TensorList receive(Rank from, const MessageTag& tag, Deadline deadline) override {
    TensorList message = inner_->receive(from, tag, deadline);
    if (tag.direction == Direction::Collective)
      std::this_thread::sleep_until(links_.arrival(from, rank(), tag));
    return message;
  }
  std::optional<TensorList> try_receive(Rank from, const MessageTag& tag) override {
    if (links_.arrival(from, rank(), tag) > Clock::now()) return std::nullopt;
    return inner_->try_receive(from, tag);
  }
  void cancel(const std::string& reason) noexcept override { inner_->cancel(reason); }
  void leave(Deadline deadline) override { inner_->leave(deadline); }

 private:
  std::unique_ptr<Endpoint> inner_;
  SlowLinks& links_;
};

/// Every pass sleeps; gradients are as many as `numbers`.
class Sleeper final : public StageBody {
 public:
  Sleeper(Seconds pass, std::int64_t numbers) : pass_(pass) {
    parameter_.name = "weight";
    parameter_.value = Tensor(DType::F32, {numbers});
    parameter_.gradient = Tensor(DType::F32, {numbers});
    parameter_.gradient.fill_zero();
  }
  TensorList forward(const PassContext& context, TensorList /*inputs*/) override {
    TensorList outputs = pass(context);
    return context.loss == nullptr ? std::move(outputs) : TensorList();
  }
  TensorList backward_input(const PassContext& context, TensorList /*gradients*/) override {
    return pass(context);
  }
  void backward_weight(const PassContext& /*context*/) override {
    std::this_thread::sleep_for(pass_);
  }
  std::vector<Parameter*> parameters() override { return {&parameter_}; }

 private:
  TensorList pass(const PassContext& context) const {
    std::this_thread::sleep_for(pass_);
    Tensor tensor = context.make(DType::F32, {1});
    tensor.fill_zero();
    return TensorList(std::move(tensor));
  }

  Seconds pass_;
  Parameter parameter_;
};

class OneNumber final : public StepData {
 public:
  TensorList inputs(const Unit& /*unit*/) override { return TensorList(Tensor(DType::F32, {1})); }
  TensorList targets(const Unit& /*unit*/) override { return {}; }
  [[nodiscard]] std::int64_t first_sample(const Unit& /*unit*/) const override { return 0; }
};

/// Both copies, step by step; keeps when the actions of the first copy ran.
class TwoCopies {
 public:
  explicit TwoCopies(const Program& program) : hub_(kCopies * kPlaces) {
    const int chunks = program.shape.chunks();
    for (int copy = 0; copy < kCopies; ++copy) {
      stages_.emplace_back();
      for (int stage = 0; stage < program.shape.stages(); ++stage) {
        bodies_.push_back(std::make_unique<Sleeper>(kPass / chunks, kNumbers / chunks));
        stages_.back().push_back({Replica{}, Stage{stage}, bodies_.back().get()});
      }
    }
    const Grid grid(kCopies, kPlaces);
    for (int process = 0; process < grid.processes(); ++process) {
      endpoints_.push_back(std::make_unique<SlowEndpoint>(hub_.endpoint(Rank{process}), links_));
      executors_.push_back(
          make_rank_executor(program,
                             stages_[static_cast<std::size_t>(grid.copy_of(Rank{process}))],
                             GridPosition(*endpoints_.back(), grid)));
    }
  }

  [[nodiscard]] const Program& program() const { return executors_.front()->program(); }

  /// Timelines of the first copy, in seconds from the first start; without the first step's.
  std::vector<Timeline> run() {
    std::barrier together(kCopies * kPlaces);
    std::vector<std::vector<Timeline>> of_process(executors_.size());
    std::vector<std::vector<Clock::time_point>> started(executors_.size());
    {
      std::vector<std::jthread> threads;
      for (std::size_t process = 0; process < executors_.size(); ++process)
        threads.emplace_back([&, process] {
          OneNumber data;
          for (std::uint64_t step = 0; step < kSteps; ++step) {
            together.arrive_and_wait();
            (void)executors_[process]->run(data, {.step = step});
            of_process[process].push_back(executors_[process]->timeline());
            started[process].push_back(executors_[process]->started());
          }
        });
    }
    std::vector<Timeline> steps;
    for (std::size_t step = 1; step < kSteps; ++step) {
      Timeline& whole = steps.emplace_back();
      for (std::size_t place = 0; place < kPlaces; ++place) {
        whole.ranks.push_back(of_process[place][step].ranks[place]);
        const double late = Seconds(started[place][step] - started[0][step]).count();
        for (Interval& interval : whole.ranks.back()) {
          interval.start += late;
          interval.end += late;
        }
      }
    }
    return steps;
  }

 private:
  InProcessHub hub_;
  SlowLinks links_;
  std::vector<std::unique_ptr<Sleeper>> bodies_;
  std::vector<std::vector<HostedStage>> stages_;  // by copy
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
  std::vector<std::unique_ptr<Executor>> executors_;
};

/// Ends of the last pass and of the last sum.
std::pair<double, double> ends_of(const Program& program, const Timeline& timeline) {
  double passes = 0, sums = 0;
  for (std::size_t r = 0; r < program.ranks.size(); ++r)
    for (std::size_t i = 0; i < program.ranks[r].size(); ++i) {
      const Op op = program.ranks[r][i].op;
      double& end = op == Op::ReduceGrad ? sums : passes;
      if (is_compute(op) || op == Op::ReduceGrad) end = std::max(end, timeline.ranks[r][i].end);
    }
  return {passes, std::max(passes, sums)};
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

Cost cost_of_sums(const Program& program) {
  Cost cost = Cost::of_full_stage(program.shape, 1, 1, 1);
  cost.ticks_per_unit = 1;
  cost.data_parallel = kCopies;
  cost.link_latency.assign(static_cast<std::size_t>(kPlaces * kPlaces), 0);
  for (int place = 0; place < kPlaces; ++place)
    cost.link_latency[static_cast<std::size_t>(place * kPlaces + place)] = kLatency.count();
  cost.bytes_per_tick = kBytesPerSecond;
  cost.gradient_bytes.assign(static_cast<std::size_t>(program.shape.stages()),
                             4.0 * kNumbers / program.shape.chunks());
  return cost;
}

/// What the sums of a rank take, in seconds.
double longest_sums(const Program& program) {
  const Cost cost = cost_of_sums(program);
  return program.shape.chunks() *
         (cost.sum_transfer(Stage{0}, Rank{0}, kPlaces) + cost.sum_delay(Rank{0}, kPlaces));
}

/// As the passes of the step really took, so that what differs is the sums' share.
double simulated_exposed(const Program& program, const Timeline& measured) {
  const Graph graph(program);
  const auto run = simulate_as_measured(graph, cost_of_sums(program), measured);
  const auto [passes, sums] = ends_of(program, std::get<Timeline>(run));
  return sums - passes;
}

void exposed(benchmark::State& state, const std::string& schedule) {
  TwoCopies copies(generate(schedule, {.ranks = kPlaces, .micro_batches = kMicroBatches}));
  std::vector<double> measured, simulated, apart, step;
  for ([[maybe_unused]] auto _ : state)
    for (const Timeline& timeline : copies.run()) {
      const auto [passes, sums] = ends_of(copies.program(), timeline);
      measured.push_back(1e3 * (sums - passes));
      simulated.push_back(1e3 * simulated_exposed(copies.program(), timeline));
      step.push_back(1e3 * sums);
      apart.push_back((measured.back() - simulated.back()) / step.back());
    }
  state.counters["sums_ms"] = 1e3 * longest_sums(copies.program());
  state.counters["exposed_ms"] = median(measured);
  state.counters["simulated_ms"] = median(simulated);
  state.counters["step_ms"] = median(step);
  state.counters["apart_of_step"] = median(apart);
}

void register_schedules() {
  for (const char* schedule : {"1f1b", "zb-h1", "interleaved", "zb-v"})
    benchmark::RegisterBenchmark(
        ("reductions/" + std::string(schedule)).c_str(), exposed, std::string(schedule))
        ->Iterations(1)
        ->Unit(benchmark::kMillisecond);
}

}  // namespace

int main(int argc, char** argv) {
  register_schedules();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
