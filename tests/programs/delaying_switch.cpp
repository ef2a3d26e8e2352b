// A switch between network namespaces that holds every frame back for a while, for tests of slow
// networks where the kernel has no queue that delays: `delaying_switch MICROSECONDS NAMESPACE...`
// makes a TAP device "lan" in each namespace, says "ready", and carries frames until it is ended.
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <iostream>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <map>
#include <poll.h>
#include <sched.h>
#include <stdexcept>
#include <string>
#include <sys/ioctl.h>
#include <system_error>
#include <unistd.h>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Hardware = std::array<unsigned char, 6>;

struct Frame {
  Clock::time_point due;
  std::size_t from;
  std::vector<unsigned char> bytes;
};

[[noreturn]] void refuse(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

/// In the namespace that this process enters for it; the descriptor stays.
int tap_in(const std::string& name) {
  const int space = ::open(("/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC);
  if (space < 0 || ::setns(space, CLONE_NEWNET) != 0) refuse("namespace " + name);
  ::close(space);
  const int tap = ::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (tap < 0) refuse("/dev/net/tun");
  ifreq request{};
  std::strncpy(request.ifr_name, "lan", IFNAMSIZ - 1);
  request.ifr_flags = static_cast<short>(IFF_TAP | IFF_NO_PI);
  if (::ioctl(tap, TUNSETIFF, &request) != 0) refuse("a TAP device in " + name);
  return tap;
}

class Switch {
 public:
  Switch(Clock::duration delay, std::vector<pollfd> ports)
      : delay_(delay), ports_(std::move(ports)) {}

  [[noreturn]] void carry() {
    for (;;) {
      wait();
      for (std::size_t i = 0; i < ports_.size(); ++i) take(i);
      for (; !held_.empty() && held_.front().due <= Clock::now(); held_.pop_front())
        give(held_.front());
    }
  }

 private:
  void wait() {
    timespec left{3600, 0};
    if (!held_.empty()) {
      const auto pause =
          std::chrono::duration_cast<std::chrono::nanoseconds>(held_.front().due - Clock::now());
      left = {0, std::max<long>(0, pause.count())};
    }
    ::ppoll(ports_.data(), ports_.size(), &left, nullptr);
  }

  void take(std::size_t port) {
    std::array<unsigned char, 65536> bytes{};
    for (;;) {
      const ssize_t size = ::read(ports_[port].fd, bytes.data(), bytes.size());
      if (size < 14) return;
      Hardware sender{};
      std::copy_n(bytes.begin() + 6, 6, sender.begin());
      places_[sender] = port;
      held_.push_back({Clock::now() + delay_, port, {bytes.begin(), bytes.begin() + size}});
    }
  }

  void give(const Frame& frame) {
    Hardware receiver{};
    std::copy_n(frame.bytes.begin(), 6, receiver.begin());
    const auto known = places_.find(receiver);
    for (std::size_t i = 0; i < ports_.size(); ++i)
      if (i != frame.from && (known == places_.end() || known->second == i))
        static_cast<void>(::write(ports_[i].fd, frame.bytes.data(), frame.bytes.size()));
  }

  Clock::duration delay_;
  std::vector<pollfd> ports_;
  std::deque<Frame> held_;  // by the time at which they are due
  std::map<Hardware, std::size_t> places_;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc < 4)
      throw std::invalid_argument("delaying_switch MICROSECONDS NAMESPACE NAMESPACE...");
    std::vector<pollfd> ports;
    for (int i = 2; i < argc; ++i) ports.push_back({tap_in(argv[i]), POLLIN, 0});
    std::cout << "ready" << std::endl;
    Switch(std::chrono::microseconds(std::stol(argv[1])), std::move(ports)).carry();
  } catch (const std::exception& error) {
    std::cerr << "delaying_switch: " << error.what() << '\n';
    return 1;
  }
}
