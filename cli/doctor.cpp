// millrace doctor: can ranks on this machine talk to each other, and how fast? Connects two ranks
// over every endpoint and sends tensors back and forth.
#include <chrono>
#include <filesystem>
#include <functional>
#include <iomanip>
#include <iostream>
#include <thread>

#include "cli/verbs.hpp"
#include "millrace/core/error.hpp"
#include "millrace/transport/message.hpp"
#include "millrace/transport/zeromq.hpp"

namespace millrace::cli {

namespace {

constexpr int kRounds = 20;

Deadline soon() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(20);
}

MessageTag numbered(int round) {
  MessageTag tag;
  tag.step = static_cast<std::uint64_t>(round);
  return tag;
}

/// Seconds of one round trip of `bytes`, the mean of some after the first.
double round_trip(const ZeroMqOptions& options, std::int64_t bytes) {
  auto ends = zeromq_mesh(options);
  std::jthread echo([&] {
    try {
      for (int i = 0; i <= kRounds; ++i)
        ends[1]->send(Rank{0}, numbered(i), ends[1]->receive(Rank{0}, numbered(i), soon()));
    } catch (const TransportError& error) {
      ends[1]->cancel(error.what());
    }
  });
  std::chrono::steady_clock::time_point start;
  for (int i = 0; i <= kRounds; ++i) {
    if (i == 1) start = std::chrono::steady_clock::now();
    Tensor tensor(DType::U8, {bytes});
    tensor.fill_zero();
    ends[0]->send(Rank{1}, numbered(i), TensorList(std::move(tensor)));
    static_cast<void>(ends[0]->receive(Rank{1}, numbered(i), soon()));
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / kRounds;
}

/// Prints a line and tells whether the check passed.
bool check(const std::string& what, const std::function<std::string()>& body) {
  try {
    const std::string found = body();
    std::cout << "ok    " << what << "  " << found << std::endl;
    return true;
  } catch (const std::exception& error) {
    std::cout << "FAIL  " << what << "  " << error.what() << std::endl;
    return false;
  }
}

std::string speed(ZeroMqOptions options) {
  constexpr std::int64_t kBlock = 1 << 20;
  const double small = round_trip(options, 4096);
  ++options.epoch;  // new endpoints in the same directory
  const double large = round_trip(options, kBlock);
  std::ostringstream text;
  text << std::fixed << std::setprecision(0) << "round trip " << 1e6 * small << " us for 4 KiB, "
       << 1e6 * large << " us for 1 MiB, " << std::setprecision(2)
       << 2 * static_cast<double>(kBlock) / large / 1e9 << " GB/s";
  return text.str();
}

int examine(const std::string& interface) {
  std::cout << "millrace " << MILLRACE_VERSION << ", frame protocol " << kProtocolVersion << ", "
            << std::thread::hardware_concurrency() << " cores" << std::endl;
  bool healthy =
      check("keys", [] { return make_curve_keys().public_key.size() == 40 ? "CURVE" : ""; });
  healthy &= check("private directory",
                   [] { return PrivateDirectory(std::filesystem::temp_directory_path()).path(); });
  ZeroMqOptions options;
  options.world = 2;
  options.interface = interface;
  healthy &= check("ipc", [&] {
    const PrivateDirectory directory(std::filesystem::temp_directory_path());
    options.directory = directory.path();
    return speed(options);
  });
  options.directory.clear();
  options.link = ZeroMqLink::Tcp;
  healthy &= check("tcp on " + interface + " with keys", [&] { return speed(options); });
  return healthy ? 0 : 1;
}

}  // namespace

void add_doctor(CLI::App& app) {
  CLI::App* verb =
      app.add_subcommand("doctor", "Check that ranks on this machine can talk, and how fast");
  auto interface = std::make_shared<std::string>("127.0.0.1");
  verb->add_option("--interface", *interface, "Address to listen on, for tcp")
      ->capture_default_str();
  verb->callback([interface] {
    if (const int code = examine(*interface); code != 0) throw ExitCode{code};
  });
}

}  // namespace millrace::cli
