// A man in the middle of every connection of a mesh: forwards frames and, on request, loses,
// duplicates, reorders, delays or damages one.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <zmq.hpp>

#include "millrace/transport/zeromq.hpp"

namespace millrace::testing_transport {

enum class Fault : std::uint8_t { None, Lose, Duplicate, Reorder, Delay, Damage };

/// Frame `number` (counted per kind of connection, over all links) is about to be forwarded.
using FaultPlan = std::function<Fault(bool data, std::uint64_t number)>;

class FaultProxy {
 public:
  /// Listens in `directory` in front of every address. `plan` runs on the proxy's thread.
  FaultProxy(const std::vector<PeerAddress>& real, const std::string& directory, FaultPlan plan);
  FaultProxy(const FaultProxy&) = delete;
  FaultProxy& operator=(const FaultProxy&) = delete;
  ~FaultProxy();

  [[nodiscard]] const std::vector<PeerAddress>& addresses() const { return addresses_; }

 private:
  using Clock = std::chrono::steady_clock;
  using Frame = std::vector<zmq::message_t>;

  struct Held {
    Frame frame;
    Clock::time_point until;
    bool holds_the_rest = false;
  };

  struct Link {
    zmq::socket_t back;
    std::deque<Held> held;
  };

  struct Front {
    zmq::socket_t socket;
    std::string real;
    bool data = false;
    std::map<std::string, Link> links;  // by identity
  };

  std::string listen(const std::string& real, const std::string& path, bool data);
  void run();
  void forward(Front& front);
  static void meet(Link& link, Frame frame, Fault fault);
  static void damage(Frame& frame);
  static void release(Link& link, Clock::time_point now);

  FaultPlan plan_;
  zmq::context_t context_{1};
  std::vector<Front> fronts_;
  std::vector<PeerAddress> addresses_;
  std::uint64_t data_frames_ = 0;
  std::uint64_t control_frames_ = 0;
  std::jthread thread_;
};

}  // namespace millrace::testing_transport
