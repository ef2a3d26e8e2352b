// A relay of bytes in front of one tcp address, whose connections can be cut and are no faster than
// reported: what a switch that restarts does to a connection that is full of data.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <string>
#include <thread>

namespace millrace::testing_transport {

class CuttingProxy {
 public:
  /// Relays to `real` ("tcp://127.0.0.1:port"), at most `bytes_per_ms` in all.
  CuttingProxy(const std::string& real, std::int64_t bytes_per_ms);
  CuttingProxy(const CuttingProxy&) = delete;
  CuttingProxy& operator=(const CuttingProxy&) = delete;
  ~CuttingProxy();

  [[nodiscard]] const std::string& address() const { return address_; }

  /// Has both sides of every connection closed; what was under way is lost.
  void cut() { cut_ = true; }

 private:
  /// Two connected sockets: what comes out of one goes into the other.
  struct Pair {
    int near = -1;
    int far = -1;
  };

  void run(const std::stop_token& stop);
  void accept_one();
  void close_all();
  static void close(const Pair& pair);
  /// Moves what has come from one socket to the other. False when the connection ended.
  [[nodiscard]] bool relay(int from, int to) const;

  std::uint16_t real_port_ = 0;
  std::int64_t bytes_per_ms_;
  std::string address_;
  int door_ = -1;
  std::list<Pair> pairs_;  // of the thread
  std::atomic<bool> cut_{false};
  std::jthread thread_;
};

}  // namespace millrace::testing_transport
