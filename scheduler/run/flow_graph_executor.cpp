// The program's graph as a oneTBB flow graph: a continue_node per action, an edge per constraint,
// built once and run every step. The only source that knows oneTBB.
//
// A body never throws: oneTBB would cancel the graph and forget counters, and the next step would
// go wrong. The first failure is kept, later bodies only pass on, the graph drains, and the failure
// is thrown after the wait.
#include <atomic>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <oneapi/tbb/flow_graph.h>
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/graph.hpp"
#include "millrace/scheduler/run/interpreter.hpp"
#include "run/kinds.hpp"
#include "run/rank_work.hpp"
#include "run/step_clock.hpp"
#include "run/valid_order.hpp"

namespace millrace::run {

namespace {

namespace flow = oneapi::tbb::flow;
using ActionNode = flow::continue_node<flow::continue_msg>;

/// Keeps the first exception of several threads.
/// Thread-safety: internally synchronised, any thread; `rethrow` and `clear` when all are done.
class FirstFailure {
 public:
  [[nodiscard]] bool happened() const { return happened_.load(std::memory_order_relaxed); }

  void keep(std::exception_ptr failure) noexcept {
    // The winner alone writes the pointer; the wait for the graph publishes it to the caller.
    if (!happened_.exchange(true, std::memory_order_relaxed)) failure_ = std::move(failure);
  }

  void clear() {
    failure_ = nullptr;
    happened_.store(false, std::memory_order_relaxed);
  }

  void rethrow() { std::rethrow_exception(std::exchange(failure_, nullptr)); }

 private:
  std::atomic<bool> happened_ = false;
  std::exception_ptr failure_;
};

class FlowGraphExecutor final : public Executor {
 public:
  FlowGraphExecutor(Program program,
                    std::span<const HostedStage> stages,
                    const ExecutorOptions& options)
      : program_(std::move(program)),
        interpreter_(program_, stages),
        clock_(program_, options.record_timeline, [](Rank) { return true; }) {
    const int cores = oneapi::tbb::info::default_concurrency();
    require(options.threads >= 0,
            "threads is " + std::to_string(options.threads) + "; it is 0 (one per core) or more");
    const int threads = options.threads == 0 ? cores : options.threads;
    if (threads > cores)
      more_threads_.emplace(oneapi::tbb::global_control::max_allowed_parallelism,
                            static_cast<std::size_t>(threads));
    arena_.emplace(threads);
    arena_->execute([&] { build(options.priorities); });
  }

  ~FlowGraphExecutor() override {
    arena_->execute([&] {
      nodes_.clear();
      graph_.reset();
    });
  }

  StepResult run(StepData& data, const StepSettings& settings) override {
    interpreter_.begin_step(data, settings);
    failure_.clear();
    clock_.begin();
    arena_->execute([&] {
      for (ActionNode* source : sources_) source->try_put(flow::continue_msg());
      graph_->wait_for_all();
    });
    if (failure_.happened()) {
      interpreter_.abandon_step();
      failure_.rethrow();
    }
    return interpreter_.end_step();
  }

  [[nodiscard]] const Timeline& timeline() const override { return clock_.timeline(); }
  [[nodiscard]] const Program& program() const override { return program_; }

  void for_each_rank(const std::function<void(Rank)>& body) override {
    RankWork work(body, program_.shape.ranks);
    arena_->execute([&] {
      oneapi::tbb::parallel_for(
          oneapi::tbb::blocked_range<int>(0, program_.shape.ranks, 1),
          [&](const oneapi::tbb::blocked_range<int>& ranks) {
            for (int i = ranks.begin(); i < ranks.end(); ++i) work.run(Rank{i});
          },
          oneapi::tbb::simple_partitioner());
    });
    work.rethrow();
  }

 private:
  void build(bool priorities) {
    graph_.emplace();
    const Graph graph(program_);
    const std::vector<std::uint32_t> priority = remaining_path(graph);  // throws on a cycle
    for (Node node = 0; node < graph.size(); ++node) {
      const Rank rank = graph.rank(node);
      const std::size_t position = node - graph.first(rank);
      const Instruction* action = &interpreter_.compiled(rank, position);
      std::optional<flow::node_priority_t> asked;
      if (priorities) asked = priority[node];
      if (Interval* place = clock_.place(rank, position); place != nullptr)
        add_node(asked, [this, action, place](const flow::continue_msg&) noexcept {
          act(*action, *place);
        });
      else
        add_node(asked, [this, action](const flow::continue_msg&) noexcept { act(*action); });
    }
    for (Node node = 0; node < graph.size(); ++node) connect(graph, node);
  }

  template <class Body>
  void add_node(std::optional<flow::node_priority_t> priority, const Body& body) {
    if (priority)
      nodes_.emplace_back(*graph_, body, *priority);
    else
      nodes_.emplace_back(*graph_, body);
  }

  /// Edges into a node. Producers on the node's own rank come before it in program order anyway.
  void connect(const Graph& graph, Node node) {
    const Rank rank = graph.rank(node);
    bool waits = false;
    if (node != graph.first(rank)) {
      flow::make_edge(nodes_[node - 1], nodes_[node]);
      waits = true;
    }
    for (const Node producer : graph.producers(node)) {
      if (graph.rank(producer) == rank) continue;
      flow::make_edge(nodes_[producer], nodes_[node]);
      waits = true;
    }
    if (!waits) sources_.push_back(&nodes_[node]);
  }

  void act(const Instruction& action) noexcept {
    if (failure_.happened()) return;
    try {
      interpreter_.execute(action);
    } catch (...) {
      failure_.keep(std::current_exception());
    }
  }

  void act(const Instruction& action, Interval& place) noexcept {
    const auto start = clock_.now();
    act(action);
    if (!failure_.happened()) clock_.note(place, start, clock_.now());
  }

  const Program program_;
  Interpreter interpreter_;
  StepClock clock_;
  FirstFailure failure_;
  std::optional<oneapi::tbb::global_control> more_threads_;
  std::optional<oneapi::tbb::task_arena> arena_;
  std::optional<flow::graph> graph_;  // built and destroyed inside the arena
  std::deque<ActionNode> nodes_;      // by Node
  std::vector<ActionNode*> sources_;
};

}  // namespace

std::unique_ptr<Executor> make_flow_graph(Program program,
                                          std::span<const HostedStage> stages,
                                          const ExecutorOptions& options) {
  return std::make_unique<FlowGraphExecutor>(std::move(program), stages, options);
}

}  // namespace millrace::run
