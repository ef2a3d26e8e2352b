#include "transport/zeromq/address.hpp"

#include <arpa/inet.h>
#include <array>
#include <charconv>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <sstream>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

#include "millrace/core/error.hpp"
#include "transport/shared_memory/descriptor_message.hpp"

namespace millrace::zeromq {

namespace {

constexpr std::string_view kIpc = "ipc://";
constexpr std::string_view kTcp = "tcp://";
constexpr int kLargestPort = 65535;

sockaddr_in socket_address(const std::string& number, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  ::inet_pton(AF_INET, number.c_str(), &address.sin_addr);
  return address;
}

std::string number_in(const sockaddr_in& address) {
  std::array<char, INET_ADDRSTRLEN> text{};
  ::inet_ntop(AF_INET, &address.sin_addr, text.data(), text.size());
  return text.data();
}

/// Without one nothing is known of any address.
shared_memory::Descriptor open_socket(int type) {
  shared_memory::Descriptor socket(::socket(AF_INET, type | SOCK_CLOEXEC, 0));
  if (!socket) shared_memory::refuse("make a socket");
  return socket;
}

bool of_this_machine_only(const std::string& number) {
  return number.starts_with("127.");
}

}  // namespace

std::string resolve_ipv4(const std::string& host, std::string* problem) {
  addrinfo wanted{};
  wanted.ai_family = AF_INET;
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int code = ::getaddrinfo(host.c_str(), nullptr, &wanted, &found); code != 0) {
    if (problem != nullptr) *problem = ::gai_strerror(code);
    return {};
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(found, &::freeaddrinfo);
  return number_in(*reinterpret_cast<const sockaddr_in*>(found->ai_addr));
}

bool is_free(const std::string& number, int port) {
  const sockaddr_in address = socket_address(number, port);
  const auto socket = open_socket(SOCK_STREAM);
  return ::bind(socket.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

bool is_own_address(const std::string& number) {
  return !number.empty() && is_free(number, 0);
}

std::string address_towards(const std::string& host) {
  std::string problem = "there is no way to it";
  const std::string number = resolve_ipv4(host, &problem);
  // Of a datagram socket that is connected, the system has chosen the way, and sent nothing.
  const auto socket = open_socket(SOCK_DGRAM);
  sockaddr_in address = socket_address(number, 9);
  socklen_t size = sizeof address;
  auto* general = reinterpret_cast<sockaddr*>(&address);
  const bool found = !number.empty() && ::connect(socket.number(), general, size) == 0 &&
                     ::getsockname(socket.number(), general, &size) == 0;
  if (!found)
    throw TransportError("cannot find from which address " + host + " is reached: " + problem);
  return number_in(address);
}

PeerAddress peer_address(const SocketAddresses& sockets) {
  require(
      (sockets.data + sockets.control).find_first_of("\t\n") == std::string::npos,
      "the path of " + sockets.data + " has a tab or line break in it, which an address cannot");
  const std::string both = sockets.data + '\t' + sockets.control;
  if (sockets.memory.empty()) return {both};
  return {both + '\t' + sockets.local_group + '\t' + sockets.memory};
}

SocketAddresses socket_addresses(const PeerAddress& address) {
  std::vector<std::string> words;
  std::istringstream text(address.text);
  for (std::string word; std::getline(text, word, '\t');) words.push_back(word);
  const auto reached = [](const std::string& socket) {
    return socket.starts_with(kIpc) || socket.starts_with(kTcp);
  };
  if ((words.size() != 2 && words.size() != 4) || !reached(words[0]) || !reached(words[1]) ||
      (words.size() == 4 && !words[3].starts_with(shared_memory::kNameless)))
    throw TransportError("'" + address.text + "' is not the address of a ZeroMQ endpoint");
  words.resize(4);
  return {words[0], words[1], words[2], words[3]};
}

MeetingPlace meeting_place(const std::string& url) {
  MeetingPlace place;
  if (url.starts_with(kIpc) && url.size() > kIpc.size()) {
    place.ipc = true;
    place.path = url.substr(kIpc.size());
    return place;
  }
  const std::size_t colon = url.rfind(':');
  bool good = url.starts_with(kTcp) && colon != std::string::npos && colon > kTcp.size();
  if (good) {
    place.host = url.substr(kTcp.size(), colon - kTcp.size());
    const char* end = url.data() + url.size();
    const auto read = std::from_chars(url.data() + colon + 1, end, place.port);
    good =
        read.ec == std::errc() && read.ptr == end && place.port >= 1 && place.port <= kLargestPort;
  }
  require(good,
          "'" + url +
              "' is not a rendezvous: tcp://host:port with a port from 1 to 65535, or "
              "ipc://path");
  return place;
}

bool listens_everywhere(const std::string& host) {
  return host.empty() || host == "*" || host == "::" || host == "[::]" ||
         resolve_ipv4(host) == "0.0.0.0";
}

void check_reachable(const MeetingPlace& place, const ZeroMqOptions& options) {
  if (place.ipc || options.link != ZeroMqLink::Tcp || options.world == 1) return;
  const std::string meeting = resolve_ipv4(place.host);
  if (meeting.empty() || of_this_machine_only(meeting)) return;
  require(!of_this_machine_only(resolve_ipv4(options.interface)),
          "the ranks meet at " + place.host + ", but this one would listen at " +
              options.interface + ", where other machines cannot reach it; name its address (" +
              named("interface") + ")");
}

std::string address_to_bind(const MeetingPlace& place) {
  if (place.ipc) return std::string(kIpc) + place.path;
  require(!listens_everywhere(place.host),
          "rank 0 would listen on all addresses at " + place.host + "; name the one to listen on");
  std::string problem;
  const std::string number = resolve_ipv4(place.host, &problem);
  if (number.empty())
    throw TransportError("rank 0 cannot listen at " + place.host + ": " + problem);
  return std::string(kTcp) + number + ":" + std::to_string(place.port);
}

}  // namespace millrace::zeromq
