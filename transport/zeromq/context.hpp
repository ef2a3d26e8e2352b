// The context's inside: the zap_handler answers every handshake, those of CURVE from a list of keys
// per domain.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <zmq.hpp>

#include "millrace/transport/zeromq.hpp"

namespace millrace {

struct ZeroMqContext::Parts {
  Parts();
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;
  ~Parts();

  /// Lets the holders of `public_keys` in to sockets of `domain`, as "r0", "r1", ....
  void admit(const std::string& domain, const std::vector<std::string>& public_keys);

  /// A new name for a domain.
  std::string new_domain();

  zmq::context_t context{1};
  std::mutex mutex;                                                   // guards everything below
  std::map<std::string, std::map<std::string, std::string>> user_of;  // domain -> key -> user
  int domains = 0;
  zmq::socket_t gate;
  std::jthread zap_handler;  // owns `gate`

 private:
  void keep_gate() noexcept;
  void answer(std::vector<zmq::message_t>& request);
};

}  // namespace millrace
