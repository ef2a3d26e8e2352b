#include "transport/fault_proxy.hpp"

#include <zmq_addon.hpp>

#include "transport/zeromq/address.hpp"

namespace millrace::testing_transport {

using namespace std::chrono_literals;

FaultProxy::FaultProxy(const std::vector<PeerAddress>& real,
                       const std::string& directory,
                       FaultPlan plan)
    : plan_(std::move(plan)) {
  for (std::size_t i = 0; i < real.size(); ++i) {
    const std::string path = "ipc://" + directory + "/proxy" + std::to_string(i);
    const zeromq::SocketAddresses at = zeromq::socket_addresses(real[i]);
    addresses_.push_back(zeromq::peer_address(
        {listen(at.data, path + ".data", true), listen(at.control, path + ".control", false)}));
  }
  thread_ = std::jthread([this] { run(); });
}

FaultProxy::~FaultProxy() {
  context_.shutdown();
  thread_.join();
}

std::string FaultProxy::listen(const std::string& real, const std::string& path, bool data) {
  zmq::socket_t socket(context_, zmq::socket_type::router);
  socket.set(zmq::sockopt::linger, 0);
  socket.bind(path);
  fronts_.push_back({std::move(socket), real, data, {}});
  return path;
}

void FaultProxy::run() {
  try {
    for (;;) {
      std::vector<zmq::pollitem_t> items;
      for (Front& front : fronts_) items.push_back({front.socket.handle(), 0, ZMQ_POLLIN, 0});
      zmq::poll(items, 1ms);
      for (Front& front : fronts_) {
        forward(front);
        for (auto& [identity, link] : front.links) release(link, Clock::now());
      }
    }
  } catch (const zmq::error_t&) {
    for (Front& front : fronts_) {  // the context ended
      front.socket.close();
      for (auto& [identity, link] : front.links) link.back.close();
    }
  }
}

void FaultProxy::forward(Front& front) {
  for (;;) {
    Frame frame;
    if (!zmq::recv_multipart(front.socket, std::back_inserter(frame), zmq::recv_flags::dontwait))
      return;
    const std::string identity = frame.front().to_string();
    frame.erase(frame.begin());
    auto found = front.links.find(identity);
    if (found == front.links.end()) {
      zmq::socket_t back(context_, zmq::socket_type::dealer);
      back.set(zmq::sockopt::linger, 0);
      back.set(zmq::sockopt::routing_id, identity);
      back.connect(front.real);
      found = front.links.emplace(identity, Link{std::move(back), {}}).first;
    }
    std::uint64_t& number = front.data ? data_frames_ : control_frames_;
    meet(found->second, std::move(frame), plan_(front.data, number++));
  }
}

void FaultProxy::meet(Link& link, Frame frame, Fault fault) {
  const auto now = Clock::now();
  release(link, now);
  if (fault == Fault::Lose) return;
  if (fault == Fault::Damage) damage(frame);
  if (!link.held.empty() && link.held.front().holds_the_rest) {
    link.held.push_back({std::move(frame), link.held.front().until, true});
    return;
  }
  if (fault == Fault::Reorder || fault == Fault::Delay) {
    link.held.push_back({std::move(frame), now + 8ms, fault == Fault::Delay});
    return;
  }
  if (fault == Fault::Duplicate) {
    Frame copy(frame.size());
    for (std::size_t i = 0; i < frame.size(); ++i) copy[i].copy(frame[i]);
    zmq::send_multipart(link.back, copy);
  }
  zmq::send_multipart(link.back, frame);
  while (!link.held.empty()) {  // what was held back now comes after its successor
    zmq::send_multipart(link.back, link.held.front().frame);
    link.held.pop_front();
  }
}

void FaultProxy::damage(Frame& frame) {
  // A bit of the payload if there is one, else of the header.
  zmq::message_t& part = !frame.back().empty() ? frame.back() : frame.front();
  zmq::message_t changed(part.data(), part.size());
  changed.data<std::uint8_t>()[changed.size() / 2] ^= 0x10U;
  part = std::move(changed);
}

void FaultProxy::release(Link& link, Clock::time_point now) {
  while (!link.held.empty() && link.held.front().until <= now) {
    zmq::send_multipart(link.back, link.held.front().frame);
    link.held.pop_front();
  }
}

}  // namespace millrace::testing_transport
