// What it costs to wait: a rank that waits for seconds wakes up to receive and to send
// heartbeats, and for nothing else. Counted in changes of context, not in time; the share of a
// core is printed. MILLRACE_TIMES says how often it is watched for two seconds.
#include <filesystem>
#include <iostream>
#include <sys/resource.h>
#include <thread>

#include <gmock/gmock.h>

#include "millrace/transport/endpoint.hpp"
#include "millrace/transport/private_directory.hpp"
#include "millrace/transport/shared_memory.hpp"
#include "millrace/transport/zeromq.hpp"
#include "transport/conformance.hpp"
#include "transport/repetitions.hpp"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using testing_transport::Endpoints;
using testing_transport::soon;

constexpr int kWorld = 4;

/// What this process has used so far.
struct Usage {
  double seconds = 0;  // of a core
  double changes = 0;  // of context, by its own will
};

Usage usage() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return {seconds(used.ru_utime) + seconds(used.ru_stime), static_cast<double>(used.ru_nvcsw)};
}

/// Every rank waits for the one before it, in a circle. What one of them uses in a second.
Usage use_of_waiting(const Endpoints& ends, std::chrono::seconds watch) {
  std::vector<std::jthread> ranks;
  for (const auto& end : ends)
    ranks.emplace_back([&self = *end] {
      const Rank before{(self.rank().value + kWorld - 1) % kWorld};
      EXPECT_THROW((void)self.receive(before, {}, soon()), Cancelled);
    });
  std::this_thread::sleep_for(1500ms);
  const Usage before = usage();
  std::this_thread::sleep_for(watch);
  const Usage after = usage();
  ends[0]->cancel("the watch is over");
  ranks.clear();
  const double share = kWorld * static_cast<double>(watch.count());
  return {(after.seconds - before.seconds) / share, (after.changes - before.changes) / share};
}

TEST(ZeroMqWaiting, LongWait_FewWakeups) {
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  for (const ZeroMqLink link : {ZeroMqLink::Ipc, ZeroMqLink::Tcp}) {
    ZeroMqOptions options;
    options.world = kWorld;
    options.link = link;
    options.directory = directory.path();
    const auto watch = std::chrono::seconds(2 * testing_transport::times(1));
    const Usage use = use_of_waiting(zeromq_mesh(options), watch);
    const char* name = link == ZeroMqLink::Ipc ? "ipc" : "tcp";
    std::cout << name << ": a waiting rank uses " << 100 * use.seconds << " % of a core and wakes "
              << use.changes << " times a second\n";
    // A word from and to each of the others, and the network library's thread with every one.
    EXPECT_LT(use.changes, 40) << name;
  }
}

TEST(SharedMemoryWaiting, LongWait_FewWakeups) {
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  const SharedMemoryOptions options{{{.world = kWorld}}, directory.path()};
  const auto watch = std::chrono::seconds(2 * testing_transport::times(1));
  const Usage use = use_of_waiting(shared_memory_mesh(options), watch);
  std::cout << "shared memory: a waiting rank uses " << 100 * use.seconds
            << " % of a core and wakes " << use.changes << " times a second\n";
  EXPECT_LT(use.changes, 20);  // its own heartbeat once, its progress thread ten times
}

}  // namespace
}  // namespace millrace
