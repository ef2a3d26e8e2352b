#include "transport/shared_memory/descriptor_message.hpp"

#include <cerrno>
#include <cstring>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "millrace/core/error.hpp"

namespace millrace::shared_memory {

namespace {

constexpr std::size_t kLongestPath = 107;
/// Longest wait for a process that listens and does not accept.
constexpr timeval kLongestKnock{0, 500'000};
constexpr std::size_t kControlBytes = CMSG_SPACE(kMostDescriptors * sizeof(int));
/// No message brings more of them: that is as many numbers as there are bytes for.
constexpr std::size_t kMostThatFit = kControlBytes / sizeof(int);

/// The memory of a message's descriptors, aligned as the system asks for.
struct alignas(cmsghdr) ControlRoom {
  std::array<char, kControlBytes> bytes{};
};

/// A path, or, with an "@" in front, a name of which no file system knows.
struct SocketName {
  sockaddr_un address{};
  socklen_t bytes = sizeof address;

  [[nodiscard]] const sockaddr* general() const {
    return reinterpret_cast<const sockaddr*>(&address);
  }
};

SocketName name_of(const std::string& path) {
  require(path.size() <= kLongestPath, [&] {
    return "socket path " + path + " has " + std::to_string(path.size()) +
           " bytes; the system allows 107";
  });
  SocketName name;
  name.address.sun_family = AF_UNIX;
  path.copy(name.address.sun_path, sizeof name.address.sun_path - 1);
  if (!path.starts_with(kNameless)) return name;
  name.address.sun_path[0] = 0;
  name.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  return name;
}

/// Takes no memory, or descriptors would be lost with it: `found` has room.
void take_descriptors(msghdr& message, std::vector<Descriptor>& found) {
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(part) + i * sizeof number, sizeof number);
      found.emplace_back(number);
    }
  }
}

}  // namespace

bool send_message(int socket, const DescriptorMessage& message, std::vector<int> descriptors) {
  DescriptorMessage copy = message;
  iovec text{&copy, sizeof copy};
  ControlRoom room;
  msghdr wire{};
  wire.msg_iov = &text;
  wire.msg_iovlen = 1;
  wire.msg_control = room.bytes.data();
  wire.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
  cmsghdr* part = CMSG_FIRSTHDR(&wire);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
  std::memcpy(CMSG_DATA(part), descriptors.data(), descriptors.size() * sizeof(int));
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(socket, &wire, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent >= 0;
}

ReceivedMessage receive_message(int socket) {
  ReceivedMessage received;
  received.descriptors.reserve(kMostThatFit);
  iovec text{&received.message, sizeof received.message};
  ControlRoom room;
  msghdr message{};
  message.msg_iov = &text;
  message.msg_iovlen = 1;
  message.msg_control = room.bytes.data();
  message.msg_controllen = room.bytes.size();
  ssize_t got = 0;
  do {
    got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0 && errno == EAGAIN) return received;
  received.arrival = Arrival::Ended;
  if (got < 0) return received;
  take_descriptors(message, received.descriptors);  // also of a message without a word
  if (got == 0) return received;
  const bool whole =
      got == sizeof received.message && (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
  received.arrival = whole ? Arrival::Came : Arrival::Garbage;
  return received;
}

Descriptor bind_socket(const std::string& path, int type) {
  const SocketName name = name_of(path);
  struct stat facts {};
  const bool there = !path.starts_with(kNameless) && ::lstat(path.c_str(), &facts) == 0;
  if (there && !S_ISSOCK(facts.st_mode))
    throw TransportError(path + " exists already, and is not a socket");
  if (there) ::unlink(path.c_str());
  Descriptor socket(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket || ::bind(socket.number(), name.general(), name.bytes) != 0)
    refuse("listen at " + path);
  return socket;
}

Descriptor listen_at(const std::string& path, int backlog) {
  Descriptor socket = bind_socket(path, SOCK_SEQPACKET);
  if (::listen(socket.number(), backlog) != 0) refuse("listen at " + path);
  return socket;
}

Descriptor connect_to(const std::string& path) {
  const SocketName name = name_of(path);
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket) refuse("connect to " + path);
  ::setsockopt(socket.number(), SOL_SOCKET, SO_SNDTIMEO, &kLongestKnock, sizeof kLongestKnock);
  int refused = 0;
  do {
    refused = ::connect(socket.number(), name.general(), name.bytes);
  } while (refused != 0 && errno == EINTR);
  return refused == 0 && is_ours(socket.number()) ? std::move(socket) : Descriptor();
}

bool is_ours(int socket) {
  ucred who{};
  socklen_t size = sizeof who;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 && who.uid == ::geteuid();
}

Descriptor accept_from(int listener) {
  return Descriptor(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

Descriptor process_of(int socket) {
  ucred who{};
  socklen_t size = sizeof who;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0) return {};
  if (who.pid <= 0 || who.pid == ::getpid()) return {};
  return Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, who.pid, 0)));
}

}  // namespace millrace::shared_memory
