// Every socket is made here, with every option it needs.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <zmq.hpp>

#include "millrace/transport/zeromq.hpp"

namespace millrace::zeromq {

/// Time for a last word (abort, bye) to leave when a socket closes.
inline constexpr int kLastWordMs = 100;

/// Throws InvalidArgument for options that do not fit together.
void check(const ZeroMqOptions& options);

/// Removes the file of an ipc socket, which the network library does not remove.
struct RemoveFile {
  void operator()(const std::string* path) const noexcept;
};
using SocketFile = std::unique_ptr<const std::string, RemoveFile>;

/// Binds in place of a socket that a dead process left. Throws TransportError where a process
/// listens and where something else lies, InvalidArgument for a path above 107 bytes.
void bind_ipc(zmq::socket_t& socket, const std::string& path);

/// The file of a bound address; null for tcp.
SocketFile file_of(const std::string& address);

/// Sends or receives one part without waiting. False when it cannot be done now; a signal's
/// handler in between is retried. Throws zmq::error_t.
bool send_part(zmq::socket_t& socket, zmq::message_t& part, bool more);
bool receive_part(zmq::socket_t& socket, zmq::message_t& part);

/// The name under which a rank's outgoing connections are known: "r3".
std::string identity_of(Rank rank);

/// Where a rank writes what it does, for the others on this machine; empty without a directory.
std::string slot_path(const ZeroMqOptions& options, Rank rank);

/// The rank of an identity, or -1.
int rank_of(std::string_view identity, int world);

/// A ROUTER with every option, not bound yet.
zmq::socket_t make_listener(zmq::context_t& context,
                            const ZeroMqOptions& options,
                            const std::string& domain);

/// A bound ROUTER that refuses unknown and oversize things. `name` makes ipc paths unique;
/// `address` gets where it listens.
zmq::socket_t listen(zmq::context_t& context,
                     const ZeroMqOptions& options,
                     const std::string& domain,
                     const std::string& name,
                     std::string& address);

/// A DEALER for `to`'s ROUTER, not connected yet. `linger_ms`: 0 for data.
zmq::socket_t make_dialer(zmq::context_t& context,
                          const ZeroMqOptions& options,
                          Rank to,
                          int linger_ms);

/// Throws TransportError when the address is none.
void connect(zmq::socket_t& socket, Rank to, const std::string& address);

}  // namespace millrace::zeromq
