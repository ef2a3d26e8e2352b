// What does a message cost between two processes of one host? There and back over shared memory,
// also where the ranks are connected over tcp, and over ZeroMQ's ipc, next to the copies and
// checksums that the way needs, made by one process alone, and by the two between which the bytes
// go, with nothing but a number that says whose turn it is: what one core wrote, the other fetches.
// An empty message costs what one costs whose payload lies in its region already: no byte of it is
// touched.
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <benchmark/benchmark.h>

#include "millrace/core/error.hpp"
#include "millrace/core/tensor_pool.hpp"
#include "millrace/transport/listener.hpp"
#include "millrace/transport/private_directory.hpp"
#include "millrace/transport/shared_memory.hpp"
#include "millrace/transport/zeromq.hpp"
#include "transport/wire/envelope.hpp"

namespace {

using namespace millrace;

/// A process of its own that runs `work`, ended with this object at the latest.
class Other {
 public:
  explicit Other(const std::function<void()>& work) : pid_(::fork()) {
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    try {
      work();
    } catch (const TransportError&) {
      std::_Exit(EXIT_SUCCESS);  // the other one has measured enough
    }
    std::_Exit(EXIT_FAILURE);
  }
  Other(const Other&) = delete;
  Other& operator=(const Other&) = delete;
  ~Other() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_;
};

/// Makes the endpoint of one of two ranks.
using Join = std::function<std::unique_ptr<Endpoint>(Rank rank, const std::string& directory)>;

std::unique_ptr<Endpoint> met(const std::string& directory, Listener&& listener) {
  return meet({.url = "ipc://" + directory + "/rendezvous"}, std::move(listener));
}

Join shared_memory(bool hashed) {
  return [hashed](Rank rank, const std::string& directory) {
    SharedMemoryOptions options;
    options.rank = rank;
    options.world = 2;
    options.directory = directory;
    options.hash_payloads = hashed;
    return met(directory, SharedMemoryListener(options));
  };
}

Join zeromq(bool hashed, bool mixed) {
  return [hashed, mixed](Rank rank, const std::string& directory) {
    ZeroMqOptions options;
    if (mixed) {
      options.link = ZeroMqLink::Tcp;
      options.insecure = true;
      options.local_group = "here";
    }
    options.rank = rank;
    options.world = 2;
    options.directory = directory;
    options.hash_payloads = hashed;
    return met(directory, ZeroMqListener(options, std::make_shared<ZeroMqContext>()));
  };
}

TensorList taken(Endpoint& end, std::uint64_t round) {
  MessageTag tag;
  tag.step = round;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  return end.receive(Rank{1 - end.rank().value}, tag, deadline);
}

void give(Endpoint& end, std::uint64_t round, TensorList message) {
  MessageTag tag;
  tag.step = round;
  end.send(Rank{1 - end.rank().value}, tag, std::move(message));
}

/// What comes goes back: out of the memory it came in, into the other's.
void round_trip(benchmark::State& state, const Join& join) {
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  const Other other([&] {
    const auto end = join(Rank{1}, directory.path());
    for (std::uint64_t round = 0;; ++round) give(*end, round, taken(*end, round));
  });
  const auto end = join(Rank{0}, directory.path());
  TensorPool pool;
  std::uint64_t round = 0;
  const auto there_and_back = [&] {
    TensorList message;
    if (state.range(0) != 0) message.push_back(pool.make(DType::U8, {state.range(0)}));
    give(*end, round, std::move(message));
    benchmark::DoNotOptimize(taken(*end, round++));
  };
  for (int i = 0; i < 100; ++i) there_and_back();  // memory is made once
  for (auto _ : state) there_and_back();
}

/// What a sender must do to a payload, and what its receiver must.
void write_payload(std::span<const std::byte> from, std::byte* to, bool hashed) {
  std::memcpy(to, from.data(), from.size());
  benchmark::ClobberMemory();
  if (hashed) benchmark::DoNotOptimize(payload_hash(from));
}

void read_payload(std::span<const std::byte> payload, bool hashed) {
  if (hashed) benchmark::DoNotOptimize(payload_hash(payload));
}

/// Memory of this process and of those that it forks.
class Shared {
 public:
  explicit Shared(std::size_t bytes)
      : bytes_(bytes),
        memory_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    require(memory_ != MAP_FAILED, "no memory to share");
    std::memset(memory_, 0, bytes);
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() { ::munmap(memory_, bytes_); }

  [[nodiscard]] std::span<std::byte> bytes() const {
    return {static_cast<std::byte*>(memory_), bytes_};
  }

 private:
  std::size_t bytes_;
  void* memory_;
};

/// There and back without anybody else: what the copies and checksums take alone.
void needed(benchmark::State& state, bool hashed) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const std::array<Shared, 3> memory{Shared(bytes), Shared(bytes), Shared(bytes)};
  for (auto _ : state)
    for (const std::size_t way : {0U, 1U}) {
      write_payload(memory[way].bytes(), memory[way + 1].bytes().data(), hashed);
      read_payload(memory[way + 1].bytes(), hashed);
    }
}

/// The same, each copy and checksum where it belongs.
void needed_by_two(benchmark::State& state, bool hashed) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const std::array<Shared, 3> memory{Shared(bytes), Shared(bytes), Shared(bytes)};
  const Shared word(sizeof(std::atomic<std::uint64_t>));
  auto& turn = *new (word.bytes().data()) std::atomic<std::uint64_t>(0);
  const auto await = [&turn](std::uint64_t mine) {
    for (int looks = 1; turn.load(std::memory_order_acquire) != mine; ++looks)
      if (looks % 4096 == 0) std::this_thread::yield();
  };
  const Other other([&] {
    for (std::uint64_t mine = 1;; mine += 2) {
      await(mine);
      read_payload(memory[1].bytes(), hashed);
      write_payload(memory[1].bytes(), memory[2].bytes().data(), hashed);
      turn.store(mine + 1, std::memory_order_release);
    }
  });
  std::uint64_t mine = 0;
  for (auto _ : state) {
    write_payload(memory[0].bytes(), memory[1].bytes().data(), hashed);
    turn.store(mine + 1, std::memory_order_release);
    await(mine += 2);
    read_payload(memory[2].bytes(), hashed);
  }
}

template <class Body>
void add(const std::string& name, std::initializer_list<std::int64_t> sizes, const Body& body) {
  auto* bench = benchmark::RegisterBenchmark(name.c_str(), body);
  for (const std::int64_t size : sizes) bench->Arg(size);
  bench->UseRealTime()->MinTime(0.3);
}

}  // namespace

int main(int count, char** arguments) {
  for (const bool hashed : {true, false}) {
    const std::string end = hashed ? "/hashed" : "/unhashed";
    const auto sizes = {std::int64_t{4} << 10, std::int64_t{1} << 20};
    add("needed" + end, sizes, [=](benchmark::State& state) { needed(state, hashed); });
    add("needed_by_two" + end, sizes, [=](benchmark::State& state) {
      needed_by_two(state, hashed);
    });
    add("shared_memory" + end, sizes, [=](benchmark::State& state) {
      round_trip(state, shared_memory(hashed));
    });
    add("zmq_ipc" + end, sizes, [=](benchmark::State& state) {
      round_trip(state, zeromq(hashed, false));
    });
    add("mixed" + end, sizes, [=](benchmark::State& state) {
      round_trip(state, zeromq(hashed, true));
    });
  }
  add("shared_memory/empty", {0}, [](benchmark::State& state) {
    round_trip(state, shared_memory(true));
  });
  benchmark::Initialize(&count, arguments);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
