// The program's graph as a oneTBB flow graph: a continue_node per chain of actions, an edge per
// constraint, built once and run every step. The only source that knows oneTBB.
//
// A chain is a run of consecutive actions of one rank inside which no other rank waits and for
// whose inner actions no other rank waits: B of stage 0 and the F after it, F and B of the last
// stage, a W and what follows it. Joining them takes nothing from the order that the graph allows.
//
// Steps of very short actions run inline, in one valid order on the calling thread: giving an
// action to another thread moves its cache lines there, which takes longer than such an action.
//
// A body never throws: oneTBB would cancel the graph and forget counters, and the next step would
// go wrong. The first failure is kept, later bodies only pass on, the graph drains, and the failure
// is thrown after the wait.
#include <algorithm>
#include <atomic>
#include <deque>
#include <exception>
#include <fmt/format.h>
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
#include "run/executors.hpp"
#include "run/inlining.hpp"
#include "run/interpreter.hpp"
#include "run/interpreter_state.hpp"
#include "run/step_clock.hpp"

namespace millrace::run {

namespace {

namespace flow = oneapi::tbb::flow;
using ChainNode = flow::continue_node<flow::continue_msg>;

/// What a node executes: `count` instructions of one rank, and where their intervals go (null when
/// nothing is recorded).
struct Chain {
  const Instruction* first;
  Interval* places;
  std::uint32_t count;
};

/// Which nodes start a chain: every first of a rank, what waits for another rank, and what follows
/// a node for which another rank waits.
std::vector<bool> chain_starts(const Graph& graph) {
  std::vector<bool> starts(graph.size() + 1, false);
  for (Node node = 0; node < graph.size(); ++node) {
    const Rank rank = graph.rank(node);
    if (node == graph.first(rank)) starts[node] = true;
    for (const Node producer : graph.producers(node)) {
      if (graph.rank(producer) == rank) continue;
      starts[node] = true;
      starts[producer + 1] = true;
    }
  }
  starts[graph.size()] = true;
  return starts;
}

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

class FlowGraphExecutor final : public ClockedExecutor {
 public:
  FlowGraphExecutor(Program program,
                    std::span<const HostedStage> stages,
                    const ExecutorOptions& options)
      : ClockedExecutor(std::move(program), options.record_timeline, [](Rank) { return true; }),
        interpreter_(program_, stages, {}, options.threads_per_rank) {
    const int cores = oneapi::tbb::info::default_concurrency();
    require(options.threads >= 0,
            fmt::format("threads is {}; it is 0 (one per core) or more", options.threads));
    require(options.inline_below.count() >= 0,
            fmt::format("inline_below is {} ns; it is 0 (never) or more",
                        options.inline_below.count()));
    const int threads = options.threads == 0 ? cores : options.threads;
    inlining_.emplace(
        options.inline_below, program_.size(), std::min(threads, program_.shape.ranks));
    if (threads > cores)
      more_threads_.emplace(oneapi::tbb::global_control::max_allowed_parallelism,
                            static_cast<std::size_t>(threads));
    arena_.emplace(threads);
    arena_->execute([&] { build(options.priorities); });
  }

  FlowGraphExecutor(const FlowGraphExecutor&) = delete;
  FlowGraphExecutor& operator=(const FlowGraphExecutor&) = delete;

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
    if (inlining_->now())
      for (const Chain& chain : in_order_) act(chain);
    else
      arena_->execute([&] { run_graph(); });
    inlining_->took(StepClock::now() - clock_.started());
    if (failure_.happened()) {
      interpreter_.abandon_step();
      failure_.rethrow();
    }
    return interpreter_.end_step();
  }

  void for_each_rank(const std::function<void(Rank)>& body) override {
    RankWork work(body, program_.shape.ranks);
    arena_->execute([&] {
      oneapi::tbb::parallel_for(
          oneapi::tbb::blocked_range<int>(0, program_.shape.ranks, 1),
          [&](const oneapi::tbb::blocked_range<int>& ranks) {
            oneapi::tbb::this_task_arena::isolate([&] {
              for (int i = ranks.begin(); i < ranks.end(); ++i) work.run(Rank{i});
            });
          },
          oneapi::tbb::simple_partitioner());
    });
    work.rethrow();
  }

 private:
  /// oneTBB starts its threads when there is work for them, which the system may refuse in the
  /// middle of a step. What waits by then is drained, so that no task outlives its node.
  void run_graph() {
    try {
      for (ChainNode* source : sources_) source->try_put(flow::continue_msg());
      graph_->wait_for_all();
      return;
    } catch (const std::exception& refusal) {
      failure_.keep(std::make_exception_ptr(
          Error(std::string("the executor cannot start its threads: ") + refusal.what())));
    }
    for (bool drained = false; !drained;) {
      try {
        graph_->wait_for_all();
        drained = true;
      } catch (const std::exception&) {
        // Refused once more, at another task; that one is gone, too.
        continue;
      }
    }
    graph_->reset();
  }

  void build(bool priorities) {
    graph_.emplace();
    const Graph graph(program_);
    const std::vector<Node> order = valid_order(graph);  // throws on a cycle
    const std::vector<std::uint32_t> priority =
        priorities ? remaining_path(graph) : std::vector<std::uint32_t>();
    const std::vector<bool> starts = chain_starts(graph);
    std::vector<std::uint32_t> chain_of(graph.size());
    std::vector<Chain> chains;
    for (Node node = 0; node < graph.size();) {
      const Node first = node;
      do chain_of[node++] = static_cast<std::uint32_t>(nodes_.size());
      while (!starts[node]);
      chains.push_back(chain(graph, first, node - first));
      add_node(chains.back(), priorities ? std::optional(priority[first]) : std::nullopt);
    }
    in_order_.reserve(chains.size());
    for (const Node node : order) {
      if (!starts[node]) continue;
      connect(graph, node, chain_of);
      in_order_.push_back(chains[chain_of[node]]);
    }
  }

  Chain chain(const Graph& graph, Node first, std::uint32_t count) {
    const Rank rank = graph.rank(first);
    const std::size_t position = first - graph.first(rank);
    return {&interpreter_.compiled(rank, position), clock_.place(rank, position), count};
  }

  void add_node(const Chain& chain, std::optional<flow::node_priority_t> priority) {
    const auto body = [this, chain](const flow::continue_msg&) noexcept { act_alone(chain); };
    if (priority)
      nodes_.emplace_back(*graph_, body, *priority);
    else
      nodes_.emplace_back(*graph_, body);
  }

  /// Edges into the chain that starts at `node`. Producers on the node's own rank come before it in
  /// program order anyway.
  void connect(const Graph& graph, Node node, const std::vector<std::uint32_t>& chain_of) {
    const Rank rank = graph.rank(node);
    ChainNode& chain = nodes_[chain_of[node]];
    bool waits = false;
    const auto wait_for = [&](Node earlier) {
      flow::make_edge(nodes_[chain_of[earlier]], chain);
      waits = true;
    };
    if (node != graph.first(rank)) wait_for(node - 1);
    for (const Node producer : graph.producers(node))
      if (graph.rank(producer) != rank) wait_for(producer);
    if (!waits) sources_.push_back(&chain);
  }

  /// A pass that waits for loops of its own would otherwise be given another node to run meanwhile,
  /// and that pass would start inside this one, on this thread.
  void act_alone(const Chain& chain) noexcept {
    oneapi::tbb::this_task_arena::isolate([&]() noexcept { act(chain); });
  }

  void act(const Chain& chain) noexcept {
    for (std::uint32_t i = 0; i < chain.count && !failure_.happened(); ++i) {
      if (chain.places == nullptr) {
        act(chain.first[i]);
        continue;
      }
      const auto start = StepClock::now();
      act(chain.first[i]);
      if (!failure_.happened()) clock_.note(chain.places[i], start, StepClock::now());
    }
  }

  void act(const Instruction& action) noexcept {
    try {
      interpreter_.execute(action);
    } catch (...) {
      failure_.keep(std::current_exception());
    }
  }

  Interpreter interpreter_;
  FirstFailure failure_;
  std::optional<oneapi::tbb::global_control> more_threads_;
  std::optional<oneapi::tbb::task_arena> arena_;
  std::optional<flow::graph> graph_;  // built and destroyed inside the arena
  std::deque<ChainNode> nodes_;       // by chain
  std::vector<ChainNode*> sources_;
  std::vector<Chain> in_order_;  // every chain after those that it waits for
  std::optional<Inlining> inlining_;
};

}  // namespace

std::unique_ptr<Executor> make_flow_graph(Program program,
                                          std::span<const HostedStage> stages,
                                          const ExecutorOptions& options) {
  return std::make_unique<FlowGraphExecutor>(std::move(program), stages, options);
}

}  // namespace millrace::run
