// Addresses of the rendezvous and of ranks: an invalid address is rejected before anything waits
// for it, and nothing listens on more than the one address that was named.
#pragma once

#include <string>

#include "millrace/transport/zeromq.hpp"

namespace millrace::zeromq {

/// The two sockets at which a rank listens: what is in its PeerAddress.
struct SocketAddresses {
  std::string data;     ///< tensors
  std::string control;  ///< acknowledgements, liveness, cancels
  /// Where ranks of one host share memory: who may be one, and the socket of that. Both or none.
  std::string local_group = {};
  std::string memory = {};
};

/// Throws InvalidArgument for a path that cannot stand in a line of several.
PeerAddress peer_address(const SocketAddresses& sockets);

/// Throws TransportError for a text that peer_address did not make.
SocketAddresses socket_addresses(const PeerAddress& address);

/// "ipc://path" or "tcp://host:port".
struct MeetingPlace {
  bool ipc = false;
  std::string path;  ///< ipc
  std::string host;  ///< tcp: a name or a number
  int port = 0;      ///< tcp
};

/// Throws InvalidArgument for any other text.
MeetingPlace meeting_place(const std::string& url);

/// The first IPv4 number of a name; empty for an unknown one, and why.
std::string resolve_ipv4(const std::string& host, std::string* problem = nullptr);

/// Whether this machine can listen at a number; at a port of it, whether it is free.
bool is_own_address(const std::string& number);
bool is_free(const std::string& number, int port);

/// The number of this machine's from which it reaches `host`. Throws TransportError where it does
/// not.
std::string address_towards(const std::string& host);

/// True for an address that stands for all of a machine's: "*", "0.0.0.0".
bool listens_everywhere(const std::string& host);

/// Throws InvalidArgument when ranks that meet there could not reach one that listens as `options`
/// say: the others would look for 127.0.0.1 on their own machine.
void check_reachable(const MeetingPlace& place, const ZeroMqOptions& options);

/// What rank 0 binds: names are resolved, which the network library does for connections only.
/// Throws InvalidArgument for an address that stands for all, TransportError for an unknown name.
std::string address_to_bind(const MeetingPlace& place);

}  // namespace millrace::zeromq
