// ZeroMQ endpoints: the conformance suite over ipc and over tcp with CURVE.
#include "millrace/transport/zeromq.hpp"

#include <filesystem>
#include <thread>

#include <gmock/gmock.h>

#include "millrace/transport/failure.hpp"
#include "transport/conformance.hpp"

namespace millrace {
namespace {

using testing_transport::Endpoints;
using testing_transport::TransportConformance;
using testing_transport::TransportUnderTest;

/// Endpoints over ipc need their directory as long as they live.
class InDirectory final : public Endpoint {
 public:
  InDirectory(std::shared_ptr<PrivateDirectory> directory, std::unique_ptr<Endpoint> inside)
      : directory_(std::move(directory)), inside_(std::move(inside)) {}

  [[nodiscard]] Rank rank() const override { return inside_->rank(); }
  [[nodiscard]] int world() const override { return inside_->world(); }
  void send(Rank to, const MessageTag& tag, TensorList payload) override {
    inside_->send(to, tag, std::move(payload));
  }
  [[nodiscard]] TensorList receive(Rank from, const MessageTag& tag, Deadline deadline) override {
    return inside_->receive(from, tag, deadline);
  }
  void cancel(const std::string& reason) noexcept override { inside_->cancel(reason); }
  void goodbye(Deadline deadline) override { inside_->goodbye(deadline); }

 private:
  std::shared_ptr<PrivateDirectory> directory_;
  std::unique_ptr<Endpoint> inside_;
};

Endpoints over_ipc(int world, const std::vector<ChannelDepth>& depths) {
  auto directory = std::make_shared<PrivateDirectory>(std::filesystem::temp_directory_path());
  ZeroMqOptions options;
  options.world = world;
  options.directory = directory->path();
  options.depths = depths;
  Endpoints endpoints;
  for (auto& end : zeromq_mesh(options))
    endpoints.push_back(std::make_unique<InDirectory>(directory, std::move(end)));
  return endpoints;
}

Endpoints over_tcp(int world, const std::vector<ChannelDepth>& depths) {
  ZeroMqOptions options;
  options.world = world;
  options.link = ZeroMqLink::Tcp;
  options.depths = depths;
  return zeromq_mesh(options);
}

INSTANTIATE_TEST_SUITE_P(ZmqIpc,
                         TransportConformance,
                         testing::Values(TransportUnderTest{"zmq-ipc", over_ipc}));
INSTANTIATE_TEST_SUITE_P(ZmqTcpCurve,
                         TransportConformance,
                         testing::Values(TransportUnderTest{"zmq-tcp", over_tcp}));

}  // namespace
}  // namespace millrace
