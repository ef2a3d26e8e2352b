// An address at which a test's ranks can meet.
#pragma once

#include <arpa/inet.h>
#include <cstdint>
#include <netinet/in.h>
#include <string>
#include <sys/socket.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace millrace::test {

/// Whether the port is free.
inline bool is_free(std::uint16_t port) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool is_bound =
      ::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  ::close(socket);
  return is_bound;
}

/// "tcp://127.0.0.1:P" with a port that was free a moment ago. It is none of those that the system
/// gives to connections (from 32768 on), which concurrent tests make all the time, and each
/// process begins to look at another place.
inline std::string free_address() {
  constexpr unsigned kFirst = 10'000;
  constexpr unsigned kPorts = 22'000;
  static unsigned next = static_cast<unsigned>(::getpid()) * 37U;
  for (unsigned i = 0; i < kPorts; ++i)
    if (const unsigned port = kFirst + next++ % kPorts; is_free(static_cast<std::uint16_t>(port)))
      return "tcp://127.0.0.1:" + std::to_string(port);
  ADD_FAILURE() << "no port is free";
  return {};
}

}  // namespace millrace::test
