// CURVE alone accepts any peer with the server's key; the ZAP handler accepts a list of keys.
// Sockets without CURVE ask it too, and are let in: a socket that asks refuses the protocol's
// versions 1 and 2, in which an unknown peer that sends its name at the wrong moment aborts the
// whole process.
#include "transport/zeromq/context.hpp"

#include <array>
#include <cstring>

#include <zmq_addon.hpp>

namespace millrace {

namespace {

/// Four per rank of the largest world that launch starts, and some.
constexpr int kMostSockets = 4 * 4096 + 64;

}  // namespace

ZeroMqContext::ZeroMqContext() : parts_(std::make_unique<Parts>()) {}

ZeroMqContext::~ZeroMqContext() = default;

CurveKeys make_curve_keys() {
  std::array<char, 41> public_key{};
  std::array<char, 41> secret_key{};
  if (zmq_curve_keypair(public_key.data(), secret_key.data()) != 0)
    throw TransportError("the network library was built without CURVE");
  CurveKeys keys{public_key.data(), SecretText(secret_key.data())};
  wipe(secret_key);
  return keys;
}

bool is_curve_key(const std::string& text) {
  std::array<std::uint8_t, 32> bytes{};
  const bool whole = text.size() == 40 && zmq_z85_decode(bytes.data(), text.c_str()) != nullptr;
  ::explicit_bzero(bytes.data(), bytes.size());
  return whole;
}

SecretText::~SecretText() {
  wipe(text_);
}

void wipe(std::span<char> bytes) noexcept {
  ::explicit_bzero(bytes.data(), bytes.size());
}

ZeroMqContext::Parts::Parts() {
  context.set(zmq::ctxopt::max_sockets, kMostSockets);
  gate = zmq::socket_t(context, zmq::socket_type::rep);
  gate.set(zmq::sockopt::linger, 0);
  gate.bind("inproc://zeromq.zap.01");
  zap_handler = std::jthread([this] { keep_gate(); });
}

ZeroMqContext::Parts::~Parts() {
  context.shutdown();  // ends the zap_handler's wait
  zap_handler.join();
}

void ZeroMqContext::Parts::admit(const std::string& domain,
                                 const std::vector<std::string>& public_keys) {
  const std::lock_guard lock(mutex);
  for (std::size_t i = 0; i < public_keys.size(); ++i)
    user_of[domain][public_keys[i]] = "r" + std::to_string(i);
}

std::string ZeroMqContext::Parts::new_domain() {
  const std::lock_guard lock(mutex);
  return "millrace-" + std::to_string(domains++);
}

void ZeroMqContext::Parts::keep_gate() noexcept {
  for (bool open = true; open;) {
    try {
      std::vector<zmq::message_t> request;
      if (zmq::recv_multipart(gate, std::back_inserter(request))) answer(request);
    } catch (const zmq::error_t& error) {
      open = error.num() == EINTR;  // else the context ended
    } catch (const std::exception&) {
      open = false;  // a request without its answer: the socket takes no other
    }
  }
  gate.close();
}

void ZeroMqContext::Parts::answer(std::vector<zmq::message_t>& request) {
  // version, request id, domain, address, identity, mechanism, credentials
  const auto text = [&](std::size_t i) {
    return i < request.size() ? request[i].to_string() : std::string();
  };
  std::string user;
  if (request.size() >= 6 && text(0) == "1.0" && text(5) == "NULL") user = "anybody";
  if (request.size() == 7 && text(0) == "1.0" && text(5) == "CURVE" && request[6].size() == 32) {
    std::array<char, 41> key{};
    zmq_z85_encode(key.data(), request[6].data<std::uint8_t>(), 32);
    const std::lock_guard lock(mutex);
    const auto domain = user_of.find(text(2));
    if (domain != user_of.end()) {
      const auto found = domain->second.find(key.data());
      if (found != domain->second.end()) user = found->second;
    }
  }
  std::array<zmq::message_t, 6> reply = {zmq::message_t(std::string("1.0")),
                                         zmq::message_t(text(1)),
                                         zmq::message_t(std::string(user.empty() ? "400" : "200")),
                                         zmq::message_t(),
                                         zmq::message_t(user),
                                         zmq::message_t()};
  zmq::send_multipart(gate, reply);
}

}  // namespace millrace
