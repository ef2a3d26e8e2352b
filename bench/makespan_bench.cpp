// Does a step of one process per rank, or of one thread per rank, take what its plan says? Eight
// ranks whose passes sleep for a millisecond (no processor time), 1F1B, 64 micro-batches: the
// makespan next to a replay of the same program with the times that the passes really took, in
// which messages and threads cost nothing. What bare ZeroMQ sockets between eight processes take
// for the same passes and messages, without anything of ours, is the floor.
#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>
#include <zmq.hpp>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/graph.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/run/executor.hpp"
#include "millrace/training/ranks.hpp"
#include "millrace/training/records.hpp"
#include "millrace/transport/listener.hpp"
#include "millrace/transport/private_directory.hpp"
#include "millrace/transport/shared_memory.hpp"
#include "millrace/transport/zeromq.hpp"

namespace {

using namespace millrace;

constexpr int kRanks = 8;
constexpr int kMicroBatches = 64;
constexpr std::int64_t kPassNanoseconds = 1'000'000;
constexpr std::uint64_t kSteps = 4;  // the first pays for memory and connections
constexpr double kNotEnded = -1;
constexpr std::int64_t kNumbers = 16;  // float32, in every message

void sleep_for_a_pass() {
  const ::timespec time{0, kPassNanoseconds};
  ::nanosleep(&time, nullptr);
}

/// Every pass sleeps; a few numbers travel.
class Sleeper final : public StageBody {
 public:
  TensorList forward(const PassContext& context, TensorList /*inputs*/) override {
    TensorList outputs = pass(context);
    return context.loss == nullptr ? std::move(outputs)
                                   : TensorList();  // the last stage gives none
  }
  TensorList backward_input(const PassContext& context, TensorList /*gradients*/) override {
    return pass(context);
  }
  void backward_weight(const PassContext& /*context*/) override {}

 private:
  static TensorList pass(const PassContext& context) {
    sleep_for_a_pass();
    Tensor tensor = context.make(DType::F32, {kNumbers});
    tensor.fill_zero();
    return TensorList(std::move(tensor));
  }
};

class Numbers final : public StepData {
 public:
  TensorList inputs(const Unit& /*unit*/) override {
    return TensorList(Tensor(DType::F32, {kNumbers}));
  }
  TensorList targets(const Unit& /*unit*/) override { return {}; }
  [[nodiscard]] std::int64_t first_sample(const Unit& /*unit*/) const override { return 0; }
};

Program program_of() {
  return generate("1f1b", {.ranks = kRanks, .micro_batches = kMicroBatches});
}

/// When everything that `node` waits for has ended; nothing where some of it has not.
std::optional<double> ready(const Graph& graph, Node node, const std::vector<double>& ends) {
  double start = node == graph.first(graph.rank(node)) ? 0 : ends[node - 1];
  for (const Node producer : graph.producers(node)) {
    if (ends[producer] == kNotEnded) return std::nullopt;
    start = std::max(start, ends[producer]);
  }
  return start;
}

/// When the last action would end if passes took what they took and all else nothing.
double replayed_makespan(const Program& program, const Timeline& measured) {
  const Graph graph(program);
  std::vector<double> ends(graph.size(), kNotEnded);
  std::vector<std::size_t> at(program.ranks.size(), 0);
  const auto advance = [&](std::size_t rank) {
    const std::size_t before = at[rank];
    for (; at[rank] < program.ranks[rank].size(); ++at[rank]) {
      const Node node = graph.first(Rank{static_cast<int>(rank)}) + static_cast<Node>(at[rank]);
      const std::optional<double> start = ready(graph, node, ends);
      if (!start) break;
      const Interval& interval = measured.ranks[rank][at[rank]];
      const bool computes = is_compute(program.ranks[rank][at[rank]].op);
      ends[node] = *start + (computes ? interval.end - interval.start : 0);
    }
    return at[rank] != before;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < at.size(); ++rank) moved = advance(rank) || moved;
  }
  return *std::max_element(ends.begin(), ends.end());
}

/// Reports the median over the steps of measured makespan / replayed makespan.
void judge(benchmark::State& state, const Program& program, std::vector<Timeline> timelines) {
  std::vector<double> ratios;
  for (const Timeline& timeline : timelines)
    ratios.push_back(step_use(program, timeline).makespan / replayed_makespan(program, timeline));
  std::sort(ratios.begin(), ratios.end());
  state.counters["over_simulation"] = ratios[ratios.size() / 2];
  state.counters["best"] = ratios.front();
  state.counters["makespan_ms"] = 1e3 * step_use(program, timelines.back()).makespan;
}

void in_one_process(benchmark::State& state) {
  std::vector<Sleeper> bodies(kRanks);
  std::vector<HostedStage> stages;
  for (int i = 0; i < kRanks; ++i)
    stages.push_back({Replica{}, Stage{i}, &bodies[static_cast<std::size_t>(i)]});
  const auto executor = make_executor(ExecutorKind::Ranks, program_of(), stages);
  Numbers data;
  std::vector<Timeline> timelines;
  for ([[maybe_unused]] auto _ : state)
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      (void)executor->run(data, {.step = step});
      if (step != 0) timelines.push_back(executor->timeline());
    }
  judge(state, executor->program(), std::move(timelines));
}

/// A rank's process: writes, step by step, when it started and its intervals.
using BeRank = void (*)(Rank rank, const std::string& directory, int out);

void write_step(int out,
                std::chrono::steady_clock::time_point start,
                const std::vector<Interval>& row) {
  const double started = std::chrono::duration<double>(start.time_since_epoch()).count();
  (void)!::write(out, &started, sizeof started);
  (void)!::write(out, row.data(), row.size() * sizeof(Interval));
}

/// Among the ranks of the directory, as the options of either backend.
template <class Options>
Options place_of(Rank rank, const std::string& directory) {
  Options place;
  place.rank = rank;
  place.world = kRanks;
  place.directory = directory;
  place.depths = channel_depths(program_of());
  return place;
}

void be_rank(Rank rank, const std::string& directory, int out, Listener&& listener) {
  const auto endpoint = meet({.url = "ipc://" + directory + "/rendezvous"}, std::move(listener));
  Sleeper body;
  const HostedStage mine{Replica{}, Stage{rank.value}, &body};
  const auto executor = make_rank_executor(program_of(), std::span(&mine, 1), *endpoint);
  Numbers data;
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    (void)executor->run(data, {.step = step});
    write_step(out, executor->started(), executor->timeline().ranks[rank.index()]);
  }
  endpoint->leave(std::chrono::steady_clock::now() + std::chrono::seconds(10));
}

void be_rank_on_sockets(Rank rank, const std::string& directory, int out) {
  be_rank(
      rank,
      directory,
      out,
      ZeroMqListener(place_of<ZeroMqOptions>(rank, directory), std::make_shared<ZeroMqContext>()));
}

void be_rank_in_shared_memory(Rank rank, const std::string& directory, int out) {
  be_rank(
      rank, directory, out, SharedMemoryListener(place_of<SharedMemoryOptions>(rank, directory)));
}

/// The baseline: a pair of sockets between neighbours, on which messages come in the program's
/// order.
class BareRank {
 public:
  BareRank(Rank rank, const std::string& directory) {
    const auto between = [&](int lower) {
      return "ipc://" + directory + "/" + std::to_string(lower);
    };
    above_.bind(between(rank.value));
    if (rank.value > 0) below_.connect(between(rank.value - 1));
  }

  void execute(Op op) {
    if (is_compute(op)) return sleep_for_a_pass();
    const bool upwards = op == Op::SendForward || op == Op::RecvBackward;
    zmq::socket_t& socket = upwards ? above_ : below_;
    if (is_send(op)) socket.send(zmq::message_t(kNumbers * sizeof(float)), zmq::send_flags::none);
    if (zmq::message_t message; is_receive(op)) (void)socket.recv(message);
  }

 private:
  zmq::context_t context_;
  zmq::socket_t above_{context_, zmq::socket_type::pair};
  zmq::socket_t below_{context_, zmq::socket_type::pair};
};

void be_bare_rank(Rank rank, const std::string& directory, int out) {
  const Program program = insert_messages_before_use(program_of());
  BareRank self(rank, directory);
  std::vector<Interval> row(program.on(rank).size());
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    const auto start = std::chrono::steady_clock::now();
    const auto since_start = [&] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    for (std::size_t i = 0; i < row.size(); ++i) {
      row[i].start = since_start();
      self.execute(program.on(rank)[i].op);
      row[i].end = since_start();
    }
    write_step(out, start, row);
  }
}

void read_all(int file, void* to, std::size_t bytes) {
  for (auto* at = static_cast<char*>(to); bytes != 0;) {
    const ssize_t count = ::read(file, at, bytes);
    if (count <= 0) std::abort();
    at += count;
    bytes -= static_cast<std::size_t>(count);
  }
}

/// Forks the ranks; returns the pipes on which they report their intervals.
std::array<int, kRanks> start_ranks(BeRank be, const std::string& directory) {
  std::array<int, kRanks> results{};
  for (int i = 0; i < kRanks; ++i) {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) std::abort();
    if (::fork() == 0) {
      be(Rank{i}, directory, ends[1]);
      ::_exit(0);
    }
    ::close(ends[1]);
    results[static_cast<std::size_t>(i)] = ends[0];
  }
  return results;
}

/// The next step of every rank on one clock, which starts with the first of them.
Timeline read_step(const Program& program, const std::array<int, kRanks>& results) {
  Timeline timeline;
  std::array<double, kRanks> started{};
  for (std::size_t i = 0; i < kRanks; ++i) {
    auto& row = timeline.ranks.emplace_back(program.ranks[i].size());
    read_all(results[i], &started[i], sizeof(double));
    read_all(results[i], row.data(), row.size() * sizeof(Interval));
  }
  const double first = *std::min_element(started.begin(), started.end());
  for (std::size_t i = 0; i < kRanks; ++i)
    for (Interval& interval : timeline.ranks[i])
      interval = {interval.start + started[i] - first, interval.end + started[i] - first};
  return timeline;
}

void in_eight_processes(benchmark::State& state, BeRank be) {
  const Program program = insert_messages_before_use(program_of());
  std::vector<Timeline> timelines;
  for ([[maybe_unused]] auto _ : state) {
    const PrivateDirectory directory(std::filesystem::temp_directory_path());
    const std::array<int, kRanks> results = start_ranks(be, directory.path());
    (void)read_step(program, results);
    for (std::uint64_t step = 1; step < kSteps; ++step)
      timelines.push_back(read_step(program, results));
    for (const int file : results) ::close(file);
    while (::wait(nullptr) > 0) continue;
  }
  judge(state, program, std::move(timelines));
}

// First: processes are forked while this one has a single thread.
BENCHMARK_CAPTURE(in_eight_processes, bare_zeromq, be_bare_rank)
    ->Iterations(2)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(in_eight_processes, endpoint, be_rank_on_sockets)
    ->Iterations(2)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(in_eight_processes, shared_memory, be_rank_in_shared_memory)
    ->Iterations(2)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK(in_one_process)->Iterations(2)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
