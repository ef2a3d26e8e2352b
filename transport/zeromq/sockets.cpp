// transport/README.md has the reason for each option.
#include "transport/zeromq/sockets.hpp"

#include <algorithm>
#include <cerrno>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <system_error>
#include <unistd.h>

#include "millrace/transport/private_directory.hpp"
#include "transport/link/endpoint.hpp"
#include "transport/wire/frame.hpp"
#include "transport/zeromq/address.hpp"

namespace millrace::zeromq {

namespace {

constexpr std::size_t kLongestIpcPath = 107;
constexpr int kLeastBacklog = 128;
constexpr std::size_t kDescriptorsOfMemory = 4;  // of every rank that we share some with

/// All pairs of ranks shake hands at once, maybe on few cores; each of them has this long.
int hand_shake_ms(int world) {
  return std::max(5000, 500 * world);
}

bool authenticated(const ZeroMqOptions& options) {
  return options.link == ZeroMqLink::Tcp && !options.keys.own.secret_key.text().empty();
}

/// Whether a process listens at the socket; a dead process may have left the file.
bool answers(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  const int end = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (end < 0)
    throw TransportError("cannot look whether another process listens at " + path + ": " +
                         std::generic_category().message(errno));
  const bool refused =
      ::connect(end, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 &&
      errno == ECONNREFUSED;
  ::close(end);
  return !refused;
}

/// Calls until no signal's handler came between.
template <class Call>
bool uninterrupted(const Call& call) {
  for (;;) {
    try {
      return call().has_value();
    } catch (const zmq::error_t& error) {
      if (error.num() != EINTR) throw;
    }
  }
}

}  // namespace

void bind_ipc(zmq::socket_t& socket, const std::string& path) {
  require(
      path.size() <= kLongestIpcPath,
      "ipc path " + path + " has " + std::to_string(path.size()) + " bytes; the system allows 107");
  struct stat facts {};
  const bool there = ::lstat(path.c_str(), &facts) == 0;
  if (there && !S_ISSOCK(facts.st_mode))
    throw TransportError(path + " exists already, and is not a socket");
  if (there && answers(path))
    throw TransportError(path + " exists already: another process listens there");
  socket.bind("ipc://" + path);
}

void RemoveFile::operator()(const std::string* path) const noexcept {
  ::unlink(path->c_str());
  delete path;
}

SocketFile file_of(const std::string& address) {
  const std::string ipc = "ipc://";
  return SocketFile(address.starts_with(ipc) ? new std::string(address.substr(ipc.size()))
                                             : nullptr);
}

bool send_part(zmq::socket_t& socket, zmq::message_t& part, bool more) {
  const auto flags =
      zmq::send_flags::dontwait | (more ? zmq::send_flags::sndmore : zmq::send_flags::none);
  return uninterrupted([&] { return socket.send(part, flags); });
}

bool receive_part(zmq::socket_t& socket, zmq::message_t& part) {
  return uninterrupted([&] { return socket.recv(part, zmq::recv_flags::dontwait); });
}

void check(const ZeroMqOptions& options) {
  check_member(options);
  // The network library ends the whole process when it gets no descriptor.
  const auto of_memory = options.local_group.empty()
                             ? std::size_t{0}
                             : kDescriptorsOfMemory * static_cast<std::size_t>(options.world);
  check_descriptors(options.world, descriptors_of_rank(options.world) + of_memory);
  if (options.link == ZeroMqLink::Ipc || !options.directory.empty())
    PrivateDirectory::check(options.directory);
  if (options.link == ZeroMqLink::Ipc) return;
  require(options.insecure || authenticated(options),
          "tcp needs keys for every rank, or to be declared insecure");
  require(!authenticated(options) ||
              options.keys.public_keys.size() == static_cast<std::size_t>(options.world),
          "there are " + std::to_string(options.keys.public_keys.size()) + " public keys for " +
              std::to_string(options.world) + " ranks");
  require(!listens_everywhere(options.interface),
          "name the one address to listen on; '" + options.interface + "' would listen on all");
}

std::string identity_of(Rank rank) {
  return "r" + std::to_string(rank.value);
}

std::string slot_path(const ZeroMqOptions& options, Rank rank) {
  if (options.directory.empty()) return {};
  return options.directory + "/" + identity_of(rank) + "." + std::to_string(options.epoch) +
         ".progress";
}

int rank_of(std::string_view text, int world) {
  if (text.size() < 2 || text.size() > 6 || text.front() != 'r') return -1;
  int rank = 0;
  for (const char digit : text.substr(1)) {
    if (digit < '0' || digit > '9') return -1;
    rank = 10 * rank + (digit - '0');
  }
  return rank < world && identity_of(Rank{rank}) == text ? rank : -1;
}

zmq::socket_t make_listener(zmq::context_t& context,
                            const ZeroMqOptions& options,
                            const std::string& domain) {
  zmq::socket_t socket(context, zmq::socket_type::router);
  socket.set(zmq::sockopt::router_mandatory, 1);
  socket.set(zmq::sockopt::router_handover, 0);
  socket.set(zmq::sockopt::linger, 0);
  const auto largest = padded_bytes(kAlignment - 1, options.largest_payload);
  socket.set(zmq::sockopt::maxmsgsize,
             static_cast<std::int64_t>(std::max<std::uint64_t>(largest, 4096)));
  // All dial at once; what does not fit is refused, or waits for seconds.
  socket.set(zmq::sockopt::backlog, std::max(kLeastBacklog, 4 * options.world));
  socket.set(zmq::sockopt::handshake_ivl, hand_shake_ms(options.world));
  socket.set(zmq::sockopt::zap_domain, domain);
  if (authenticated(options)) {
    socket.set(zmq::sockopt::curve_server, 1);
    socket.set(zmq::sockopt::curve_secretkey, options.keys.own.secret_key.text());
  }
  return socket;
}

zmq::socket_t listen(zmq::context_t& context,
                     const ZeroMqOptions& options,
                     const std::string& domain,
                     const std::string& name,
                     std::string& address) {
  zmq::socket_t socket = make_listener(context, options, domain);
  try {
    if (options.link == ZeroMqLink::Ipc)
      bind_ipc(socket, options.directory + "/" + name);
    else
      socket.bind("tcp://" + options.interface + ":0");
  } catch (const zmq::error_t& error) {
    const bool ipc = options.link == ZeroMqLink::Ipc;
    throw TransportError("cannot listen at " + (ipc ? options.directory : options.interface) +
                         " as " + name + ": " + error.what() +
                         (ipc ? "" : "; is it an address of this machine?"));
  }
  address = socket.get(zmq::sockopt::last_endpoint);
  return socket;
}

zmq::socket_t make_dialer(zmq::context_t& context,
                          const ZeroMqOptions& options,
                          Rank to,
                          int linger_ms) {
  zmq::socket_t socket(context, zmq::socket_type::dealer);
  socket.set(zmq::sockopt::routing_id, identity_of(options.rank));
  socket.set(zmq::sockopt::linger, linger_ms);
  socket.set(zmq::sockopt::sndhwm, 0);  // the depth of the channels bounds what can wait here
  socket.set(zmq::sockopt::maxmsgsize, std::int64_t{4096});
  socket.set(zmq::sockopt::reconnect_ivl, 20);
  socket.set(zmq::sockopt::reconnect_ivl_max, 500);
  socket.set(zmq::sockopt::handshake_ivl, hand_shake_ms(options.world));
  if (authenticated(options)) {
    socket.set(zmq::sockopt::curve_serverkey, options.keys.public_keys[to.index()]);
    socket.set(zmq::sockopt::curve_publickey, options.keys.own.public_key);
    socket.set(zmq::sockopt::curve_secretkey, options.keys.own.secret_key.text());
  }
  return socket;
}

void connect(zmq::socket_t& socket, Rank to, const std::string& address) {
  try {
    socket.connect(address);
  } catch (const zmq::error_t& error) {
    throw TransportError("cannot connect to rank " + std::to_string(to.value) + " at " + address +
                         ": " + error.what());
  }
}

}  // namespace millrace::zeromq

namespace millrace {

// Of every other rank: two sockets for it and two from it, each of them with its connection, and a
// ninth while the ranks meet. The rest are the context's threads and files that the work opens.
std::size_t descriptors_of_rank(int world) {
  constexpr std::size_t kOfAPeer = 9;
  constexpr std::size_t kOfItself = 32;
  return kOfAPeer * static_cast<std::size_t>(world - 1) + kOfItself;
}

}  // namespace millrace
