// What does an action cost beyond its body, and how well do executors fill the threads?
//
// EmptyBodies: a 1F1B step whose passes do nothing, in the flow-graph executor (with and without
// its timeline), next to a plain graph of continue_nodes with the same edges and next to a loop of
// calls. Counter: nanoseconds per action.
// BeyondBody: the same in turn, a step each, in one loop, so that the load of the machine meets all
// of them; the executor as it comes, which soon runs such short actions inline, and one that never
// does. Medians over the iterations, per action: `flow_graph_ns`, `tasks_ns` (never inline),
// `plain_ns`, `body_ns` (loop of calls); ns_beyond_body = flow_graph_ns - body_ns; ratio_to_plain =
// ns_beyond_body / plain_ns; tasks_to_plain = (tasks_ns - body_ns) / plain_ns. FilledThreads: 4
// ranks on 2 threads with passes of about 0.3 ms. Counter `stretch`: makespan over (sum of the
// measured passes / threads); 1 is perfect.
#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>
#include <oneapi/tbb/flow_graph.h>
#include <oneapi/tbb/task_arena.h>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/graph.hpp"
#include "millrace/scheduler/run/executor.hpp"

namespace {

using namespace millrace;
namespace flow = oneapi::tbb::flow;

constexpr int kThreads = 2;

TensorList one_number() {
  static float number = 0;
  return TensorList(Tensor(DType::F32, {1}, &number, nullptr, nullptr));
}

/// Spends `rounds` rounds of dependent arithmetic in every pass; none by default. One borrowed
/// number travels.
class BenchStage final : public StageBody {
 public:
  explicit BenchStage(int rounds) : rounds_(rounds) {}

  TensorList forward(const PassContext& context, TensorList inputs) override {
    work(1);
    return context.loss == nullptr ? std::move(inputs) : TensorList();
  }

  TensorList backward_input(const PassContext& context, TensorList gradients) override {
    work(1);
    return context.loss == nullptr ? std::move(gradients) : one_number();
  }

  void backward_weight(const PassContext&) override { work(1); }

 private:
  void work(int times) const {
    double x = 1.0;
    for (int i = 0; i < times * rounds_; ++i) x = x * 0.999999 + 1e-9;
    benchmark::DoNotOptimize(x);
  }

  int rounds_;
};

class OneNumber final : public StepData {
 public:
  TensorList inputs(const Unit&) override { return one_number(); }
  TensorList targets(const Unit&) override { return {}; }
  [[nodiscard]] std::int64_t first_sample(const Unit&) const override { return 0; }
};

struct Pipeline {
  Pipeline(const std::string& schedule, int ranks, int micro_batches, int rounds)
      : program(generate(schedule, {.ranks = ranks, .micro_batches = micro_batches})) {
    for (int stage = 0; stage < program.shape.stages(); ++stage) {
      bodies.push_back(std::make_unique<BenchStage>(rounds));
      hosted.push_back({Replica{0}, Stage{stage}, bodies.back().get()});
    }
  }

  Program program;
  std::vector<std::unique_ptr<BenchStage>> bodies;
  std::vector<HostedStage> hosted;
  OneNumber data;
};

void count_actions(benchmark::State& state, std::size_t actions) {
  state.counters["ns_per_action"] = benchmark::Counter(
      static_cast<double>(actions) * static_cast<double>(state.iterations()) * 1e-9,
      benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void run_executor(benchmark::State& state, ExecutorKind kind, bool records) {
  Pipeline pipeline("1f1b", static_cast<int>(state.range(0)), static_cast<int>(state.range(1)), 0);
  const auto executor = make_executor(
      kind, pipeline.program, pipeline.hosted, {.threads = kThreads, .record_timeline = records});
  for ([[maybe_unused]] auto _ : state) benchmark::DoNotOptimize(executor->run(pipeline.data, {}));
  count_actions(state, pipeline.program.size());
}

void flow_graph(benchmark::State& state) {
  run_executor(state, ExecutorKind::FlowGraph, false);
}

void flow_graph_with_timeline(benchmark::State& state) {
  run_executor(state, ExecutorKind::FlowGraph, true);
}

void sequential(benchmark::State& state) {
  run_executor(state, ExecutorKind::Sequential, false);
}

/// The graph alone: the same nodes and edges, bodies that return at once.
class PlainGraph {
 public:
  explicit PlainGraph(const Program& program) : arena_(kThreads) {
    const Graph graph(program);
    arena_.execute([&] {
      plain_.emplace();
      for (Node node = 0; node < graph.size(); ++node)
        nodes_.emplace_back(*plain_, [](const flow::continue_msg&) noexcept {});
      for (Node node = 0; node < graph.size(); ++node) {
        if (graph.position(node) > 0) flow::make_edge(nodes_[node - 1], nodes_[node]);
        for (const Node producer : graph.producers(node))
          flow::make_edge(nodes_[producer], nodes_[node]);
      }
    });
  }
  PlainGraph(const PlainGraph&) = delete;
  PlainGraph& operator=(const PlainGraph&) = delete;

  ~PlainGraph() {
    arena_.execute([&] {
      nodes_.clear();
      plain_.reset();
    });
  }

  void run() {
    arena_.execute([&] {
      nodes_[0].try_put(flow::continue_msg());
      plain_->wait_for_all();
    });
  }

 private:
  oneapi::tbb::task_arena arena_;
  std::deque<flow::continue_node<flow::continue_msg>> nodes_;
  std::optional<flow::graph> plain_;
};

void plain_continue_nodes(benchmark::State& state) {
  const Pipeline pipeline(
      "1f1b", static_cast<int>(state.range(0)), static_cast<int>(state.range(1)), 0);
  PlainGraph plain(pipeline.program);
  for ([[maybe_unused]] auto _ : state) plain.run();
  count_actions(state, pipeline.program.size());
}

void call_every_pass(const Pipeline& pipeline) {
  const PassContext context;
  for (const auto& list : pipeline.program.ranks)
    for (const Action& action : list) {
      StageBody& body = *pipeline.hosted[action.stage.index()].body;
      if (action.op == Op::Forward)
        benchmark::DoNotOptimize(body.forward(context, {}));
      else
        benchmark::DoNotOptimize(body.backward(context, {}));
    }
}

/// The floor: the passes called one after the other.
void loop_of_calls(benchmark::State& state) {
  const Pipeline pipeline(
      "1f1b", static_cast<int>(state.range(0)), static_cast<int>(state.range(1)), 0);
  for ([[maybe_unused]] auto _ : state) call_every_pass(pipeline);
  count_actions(state, pipeline.program.size());
}

/// How long each of several ways took, step after step.
class StepTimes {
 public:
  template <class Step>
  void take(Step&& step) {
    const auto start = std::chrono::steady_clock::now();
    step();
    const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
    nanoseconds_.push_back(spent.count());
  }

  [[nodiscard]] double median_per(std::size_t actions) {
    const auto middle = nanoseconds_.begin() + static_cast<std::ptrdiff_t>(nanoseconds_.size() / 2);
    std::nth_element(nanoseconds_.begin(), middle, nanoseconds_.end());
    return *middle / static_cast<double>(actions);
  }

 private:
  std::vector<double> nanoseconds_;
};

void beyond_body(benchmark::State& state) {
  Pipeline pipeline("1f1b", static_cast<int>(state.range(0)), static_cast<int>(state.range(1)), 0);
  ExecutorOptions options{.threads = kThreads, .record_timeline = false};
  const auto executor =
      make_executor(ExecutorKind::FlowGraph, pipeline.program, pipeline.hosted, options);
  options.inline_below = std::chrono::nanoseconds(0);
  const auto tasks =
      make_executor(ExecutorKind::FlowGraph, pipeline.program, pipeline.hosted, options);
  PlainGraph graph_alone(pipeline.program);
  StepTimes flow_graph_steps, tasks_steps, plain_steps, body_steps;
  for ([[maybe_unused]] auto _ : state) {
    flow_graph_steps.take([&] { benchmark::DoNotOptimize(executor->run(pipeline.data, {})); });
    tasks_steps.take([&] { benchmark::DoNotOptimize(tasks->run(pipeline.data, {})); });
    plain_steps.take([&] { graph_alone.run(); });
    body_steps.take([&] { call_every_pass(pipeline); });
  }
  const std::size_t actions = pipeline.program.size();
  const double whole = flow_graph_steps.median_per(actions);
  const double plain = plain_steps.median_per(actions);
  const double body = body_steps.median_per(actions);
  state.counters["flow_graph_ns"] = whole;
  const double as_tasks = tasks_steps.median_per(actions);
  state.counters["tasks_ns"] = as_tasks;
  state.counters["plain_ns"] = plain;
  state.counters["body_ns"] = body;
  state.counters["ns_beyond_body"] = whole - body;
  state.counters["ratio_to_plain"] = (whole - body) / plain;
  state.counters["tasks_to_plain"] = (as_tasks - body) / plain;
}

/// Rounds of BenchStage that take about 0.3 ms, measured once.
int rounds_of_a_pass() {
  BenchStage probe(1'000'000);
  const auto start = std::chrono::steady_clock::now();
  (void)probe.forward({}, {});
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  return static_cast<int>(1e6 * 0.3e-3 / elapsed.count());
}

double seconds_of_passes(const Timeline& timeline, double& makespan) {
  double work = 0;
  makespan = 0;
  for (const auto& rank : timeline.ranks)
    for (const Interval& interval : rank) {
      work += interval.end - interval.start;
      makespan = std::max(makespan, interval.end);
    }
  return work;
}

void fill_threads(benchmark::State& state, bool priorities) {
  Pipeline pipeline("zb-h1", 4, static_cast<int>(state.range(0)), rounds_of_a_pass());
  const auto executor = make_executor(ExecutorKind::FlowGraph,
                                      pipeline.program,
                                      pipeline.hosted,
                                      {.threads = kThreads, .priorities = priorities});
  double work = 0;
  double spent = 0;
  for ([[maybe_unused]] auto _ : state) {
    benchmark::DoNotOptimize(executor->run(pipeline.data, {}));
    double makespan = 0;
    work += seconds_of_passes(executor->timeline(), makespan);
    spent += makespan;
  }
  state.counters["stretch"] = spent / (work / kThreads);
}

void filled_threads(benchmark::State& state) {
  fill_threads(state, false);
}

void filled_threads_with_priorities(benchmark::State& state) {
  fill_threads(state, true);
}

void sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"p", "m"})->ArgsProduct({{2, 4, 8}, {8, 64, 512}})->UseRealTime();
}

void few_sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"m"})->Arg(8)->Arg(32)->UseRealTime()->Unit(benchmark::kMillisecond);
}

BENCHMARK(flow_graph)->Name("EmptyBodies/flow_graph")->Apply(sizes);
BENCHMARK(flow_graph_with_timeline)->Name("EmptyBodies/flow_graph_with_timeline")->Apply(sizes);
BENCHMARK(plain_continue_nodes)->Name("EmptyBodies/plain_continue_nodes")->Apply(sizes);
BENCHMARK(sequential)->Name("EmptyBodies/sequential")->Apply(sizes);
BENCHMARK(loop_of_calls)->Name("EmptyBodies/loop_of_calls")->Apply(sizes);
BENCHMARK(beyond_body)->Name("BeyondBody")->Apply(sizes);
BENCHMARK(filled_threads)->Name("FilledThreads/flow_graph")->Apply(few_sizes);
BENCHMARK(filled_threads_with_priorities)
    ->Name("FilledThreads/flow_graph_with_priorities")
    ->Apply(few_sizes);

}  // namespace

BENCHMARK_MAIN();
