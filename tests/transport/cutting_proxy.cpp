#include "transport/cutting_proxy.hpp"

#include <array>
#include <chrono>
#include <netinet/in.h>
#include <poll.h>
#include <stdexcept>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

namespace millrace::testing_transport {

namespace {

constexpr std::size_t kPiece = 64 * 1024;

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

int new_socket() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) throw std::runtime_error("no socket");
  return socket;
}

}  // namespace

CuttingProxy::CuttingProxy(const std::string& real, std::int64_t bytes_per_ms)
    : real_port_(static_cast<std::uint16_t>(std::stoi(real.substr(real.rfind(':') + 1)))),
      bytes_per_ms_(bytes_per_ms),
      door_(new_socket()) {
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  if (::bind(door_, reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      ::listen(door_, 8) != 0 ||
      ::getsockname(door_, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw std::runtime_error("no place to listen");
  address_ = "tcp://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

CuttingProxy::~CuttingProxy() {
  thread_.request_stop();
  thread_.join();
  close_all();
  ::close(door_);
}

void CuttingProxy::close_all() {
  for (const Pair& pair : pairs_) close(pair);
  pairs_.clear();
}

void CuttingProxy::close(const Pair& pair) {
  ::close(pair.near);
  ::close(pair.far);
}

void CuttingProxy::accept_one() {
  const Pair pair{::accept4(door_, nullptr, nullptr, SOCK_CLOEXEC), new_socket()};
  const sockaddr_in real = loopback(real_port_);
  if (::connect(pair.far, reinterpret_cast<const sockaddr*>(&real), sizeof real) == 0)
    pairs_.push_back(pair);
  else
    close(pair);
}

bool CuttingProxy::relay(int from, int to) const {
  std::array<char, kPiece> bytes{};
  const ssize_t count = ::recv(from, bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (count <= 0) return false;
  for (ssize_t done = 0; done < count;) {
    const ssize_t sent =
        ::send(to, bytes.data() + done, static_cast<std::size_t>(count - done), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    done += sent;
  }
  std::this_thread::sleep_for(std::chrono::microseconds(1000 * count / bytes_per_ms_));
  return true;
}

void CuttingProxy::run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    if (cut_.exchange(false)) close_all();
    std::vector<pollfd> items = {{door_, POLLIN, 0}};
    for (const Pair& pair : pairs_) {
      items.push_back({pair.near, POLLIN, 0});
      items.push_back({pair.far, POLLIN, 0});
    }
    ::poll(items.data(), items.size(), 1);
    std::size_t at = 1;
    std::erase_if(pairs_, [&](const Pair& pair) {
      const bool from_near = items[at++].revents != 0;
      const bool from_far = items[at++].revents != 0;
      const bool lives =
          (!from_near || relay(pair.near, pair.far)) && (!from_far || relay(pair.far, pair.near));
      if (!lives) close(pair);
      return !lives;
    });
    if (items[0].revents != 0) accept_one();
  }
}

}  // namespace millrace::testing_transport
