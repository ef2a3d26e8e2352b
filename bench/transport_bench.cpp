// What does a message cost? Round trip and one-way stream of one tensor between two threads of one
// process over every transport, next to what bounds them: memcpy, a raw UNIX socket, and two bare
// ZeroMQ sockets that lend their memory on sending, with and without what every endpoint must add
// (header, names, aligned memory). Run in one process, so that all see the same machine at the same
// time.
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <benchmark/benchmark.h>
#include <zmq.hpp>

#include "millrace/core/tensor_pool.hpp"
#include "millrace/transport/in_process.hpp"
#include "millrace/transport/private_directory.hpp"
#include "millrace/transport/zeromq.hpp"
#include "transport/wire/envelope.hpp"

namespace {

using namespace millrace;

/// Both ends of a connection; `send` and `receive` move one block of the agreed size.
class Pipe {
 public:
  Pipe() = default;
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  virtual ~Pipe() = default;
  virtual void send(std::size_t from) = 0;
  virtual void receive(std::size_t to) = 0;
};

class EndpointPipe final : public Pipe {
 public:
  EndpointPipe(std::vector<std::unique_ptr<Endpoint>> ends, std::int64_t bytes)
      : ends_(std::move(ends)), bytes_(bytes) {
    // The stream's receiver leaves the pool's blocks with the sender, as a pipeline does.
    for (auto& pool : pools_) static_cast<void>(pool.make(DType::U8, {bytes}));
  }

  void send(std::size_t from) override {
    MessageTag tag;
    tag.step = sent_[from]++;
    ends_[from]->send(other(from), tag, TensorList(pools_[from].make(DType::U8, {bytes_})));
  }

  void receive(std::size_t to) override {
    MessageTag tag;
    tag.step = received_[to]++;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    benchmark::DoNotOptimize(ends_[to]->receive(other(to), tag, deadline));
  }

 private:
  static Rank other(std::size_t end) { return Rank{end == 0 ? 1 : 0}; }

  std::array<TensorPool, 2> pools_;
  std::vector<std::unique_ptr<Endpoint>> ends_;
  std::int64_t bytes_;
  std::array<std::uint64_t, 2> sent_{};
  std::array<std::uint64_t, 2> received_{};
};

class SocketPipe final : public Pipe {
 public:
  explicit SocketPipe(std::int64_t bytes) {
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends_.data()) != 0) std::abort();
    for (auto& buffer : buffers_) buffer.resize(static_cast<std::size_t>(bytes));
  }

  SocketPipe(const SocketPipe&) = delete;
  SocketPipe& operator=(const SocketPipe&) = delete;

  ~SocketPipe() override {
    for (const int end : ends_) ::close(end);
  }

  void send(std::size_t from) override {
    const auto& buffer = buffers_[from];
    for (std::size_t done = 0; done < buffer.size();)
      done += static_cast<std::size_t>(
          ::write(ends_[from], buffer.data() + done, buffer.size() - done));
  }

  void receive(std::size_t to) override {
    auto& buffer = buffers_[to];
    for (std::size_t done = 0; done < buffer.size();)
      done +=
          static_cast<std::size_t>(::read(ends_[to], buffer.data() + done, buffer.size() - done));
  }

 private:
  std::array<int, 2> ends_{-1, -1};
  std::array<std::vector<char>, 2> buffers_;
};

class BarePipe final : public Pipe {
 public:
  explicit BarePipe(std::int64_t bytes) : directory_(std::filesystem::temp_directory_path()) {
    for (auto& buffer : buffers_) buffer.resize(static_cast<std::size_t>(bytes));
    for (int i = 0; i < 2; ++i) {
      sockets_.emplace_back(context_, zmq::socket_type::pair);
      sockets_.back().set(zmq::sockopt::linger, 0);
      sockets_.back().set(zmq::sockopt::sndhwm, 0);
    }
    sockets_[0].bind("ipc://" + directory_.path() + "/pair");
    sockets_[1].connect("ipc://" + directory_.path() + "/pair");
  }

  void send(std::size_t from) override {
    auto& buffer = buffers_[from];
    zmq::message_t message(buffer.data(), buffer.size(), [](void*, void*) {});
    sockets_[from].send(message, zmq::send_flags::none);
  }

  void receive(std::size_t to) override {
    zmq::message_t message;
    static_cast<void>(sockets_[to].recv(message));
  }

 private:
  PrivateDirectory directory_;
  std::array<std::vector<char>, 2> buffers_;
  zmq::context_t context_{1};
  std::vector<zmq::socket_t> sockets_;
};

/// What an endpoint of ours cannot do without: a header, two sockets per rank that know the sender,
/// and payloads in aligned memory.
class FramedPipe final : public Pipe {
 public:
  explicit FramedPipe(std::int64_t bytes)
      : directory_(std::filesystem::temp_directory_path()), bytes_(bytes) {
    for (std::size_t i = 0; i < 2; ++i) {
      buffers_[i] = Tensor(DType::U8, {bytes});
      listeners_.emplace_back(context_, zmq::socket_type::router);
      listeners_[i].bind("ipc://" + directory_.path() + "/" + std::to_string(i));
    }
    for (std::size_t i = 0; i < 2; ++i) {
      dialers_.emplace_back(context_, zmq::socket_type::dealer);
      dialers_[i].set(zmq::sockopt::linger, 0);
      dialers_[i].set(zmq::sockopt::sndhwm, 0);
      dialers_[i].connect("ipc://" + directory_.path() + "/" + std::to_string(1 - i));
    }
  }

  void send(std::size_t from) override {
    Tensor& buffer = buffers_[from];
    dialers_[from].send(zmq::message_t(kHeaderBytes), zmq::send_flags::sndmore);
    zmq::message_t payload(buffer.data(), buffer.bytes(), [](void*, void*) {});
    dialers_[from].send(payload, zmq::send_flags::none);
  }

  void receive(std::size_t to) override {
    zmq::message_t part;
    for (int i = 0; i < 3; ++i) static_cast<void>(listeners_[to].recv(part));
    Tensor tensor = pools_[to].make(DType::U8, {bytes_});
    std::memcpy(tensor.data(), part.data(), part.size());
    benchmark::DoNotOptimize(tensor);
  }

 private:
  PrivateDirectory directory_;
  std::int64_t bytes_;
  std::array<TensorPool, 2> pools_;
  std::array<Tensor, 2> buffers_;
  zmq::context_t context_{1};
  std::vector<zmq::socket_t> listeners_;
  std::vector<zmq::socket_t> dialers_;
};

using MakePipe = std::function<std::unique_ptr<Pipe>(std::int64_t bytes)>;

std::unique_ptr<Pipe> over_zeromq(std::int64_t bytes, ZeroMqOptions options) {
  static const PrivateDirectory directory(std::filesystem::temp_directory_path());
  static std::uint32_t epoch = 0;
  options.world = 2;
  options.epoch = ++epoch;
  options.directory = directory.path();
  return std::make_unique<EndpointPipe>(zeromq_mesh(options), bytes);
}

std::unique_ptr<Pipe> in_process(std::int64_t bytes) {
  InProcessHub hub(2);
  std::vector<std::unique_ptr<Endpoint>> ends;
  for (int i = 0; i < 2; ++i) ends.push_back(hub.endpoint(Rank{i}));
  return std::make_unique<EndpointPipe>(std::move(ends), bytes);
}

void round_trip(benchmark::State& state, const MakePipe& make) {
  const auto pipe = make(state.range(0));
  // The echo knows when to stop by the number of rounds: one block per iteration and a last one.
  std::atomic<bool> over = false;
  std::jthread echo([&] {
    for (;;) {
      pipe->receive(1);
      if (over) return;
      pipe->send(1);
    }
  });
  const auto there_and_back = [&] {
    pipe->send(0);
    pipe->receive(0);
  };
  for (int i = 0; i < 3; ++i) there_and_back();  // connections and memory are made once
  for (auto _ : state) there_and_back();
  over = true;
  pipe->send(0);
  echo.join();
}

void stream(benchmark::State& state, const MakePipe& make) {
  const auto pipe = make(state.range(0));
  const int window = 8;  // blocks in flight
  std::atomic<std::int64_t> windows = 0;
  std::atomic<bool> over = false;
  std::jthread sink([&] {
    for (std::int64_t done = 0; !over || done < windows; ++done) {
      for (int i = 0; i < window; ++i) pipe->receive(1);
      pipe->send(1);
    }
  });
  const auto send_window = [&] {
    ++windows;
    for (int i = 0; i < window; ++i) pipe->send(0);
  };
  send_window();                 // one ahead, so that the stream does not pause for the answer
  for (int i = 0; i < 3; ++i) {  // connections and memory are made once
    send_window();
    pipe->receive(0);
  }
  for (auto _ : state) {
    send_window();
    pipe->receive(0);
  }
  ++windows;  // counted before `over` is seen, so that the sink takes it
  over = true;
  for (int i = 0; i < window; ++i) pipe->send(0);
  pipe->receive(0);
  pipe->receive(0);
  sink.join();
  state.SetBytesProcessed(state.iterations() * window * state.range(0));
}

void copy(benchmark::State& state) {
  std::vector<char> from(static_cast<std::size_t>(state.range(0)), 'x');
  std::vector<char> to(from.size());
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), from.size());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

void add(const std::string& name, const MakePipe& make, bool streams = true) {
  const auto sizes = [](benchmark::internal::Benchmark* bench) {
    bench->Arg(4 << 10)->Arg(1 << 20)->Arg(16 << 20)->UseRealTime()->MinTime(0.3);
  };
  benchmark::RegisterBenchmark(("round_trip/" + name).c_str(), [make](benchmark::State& state) {
    round_trip(state, make);
  })->Apply(sizes);
  if (!streams) return;
  benchmark::RegisterBenchmark(("stream/" + name).c_str(), [make](benchmark::State& state) {
    stream(state, make);
  })->Apply(sizes);
}

MakePipe zeromq(ZeroMqLink link, bool insecure, bool hashed) {
  return [=](std::int64_t bytes) {
    ZeroMqOptions options;
    options.link = link;
    options.insecure = insecure;
    options.hash_payloads = hashed;
    return over_zeromq(bytes, options);
  };
}

}  // namespace

int main(int count, char** arguments) {
  benchmark::RegisterBenchmark("memcpy", copy)->Arg(4 << 10)->Arg(1 << 20)->Arg(16 << 20);
  add("in_process", in_process);
  // A socket's buffer is smaller than a window, and both ends would wait: round trips only.
  add(
      "unix_socket", [](std::int64_t bytes) { return std::make_unique<SocketPipe>(bytes); }, false);
  add("bare_zeromq_ipc", [](std::int64_t bytes) { return std::make_unique<BarePipe>(bytes); });
  add("framed_zeromq_ipc", [](std::int64_t bytes) { return std::make_unique<FramedPipe>(bytes); });
  add("zmq_ipc_unhashed", zeromq(ZeroMqLink::Ipc, false, false));
  add("zmq_ipc", zeromq(ZeroMqLink::Ipc, false, true));
  add("zmq_tcp", zeromq(ZeroMqLink::Tcp, true, true));
  add("zmq_tcp_curve", zeromq(ZeroMqLink::Tcp, false, true));
  benchmark::Initialize(&count, arguments);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
