// An address at which a test's ranks can meet.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string>
#include <sys/socket.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace millrace::test {

/// "tcp://127.0.0.1:P" with a port that was free a moment ago.
inline std::string free_address() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(::bind(socket, generic, size), 0);
  EXPECT_EQ(::getsockname(socket, generic, &size), 0);
  ::close(socket);
  return "tcp://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
}

}  // namespace millrace::test
