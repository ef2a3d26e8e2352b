// Faults on the way: every frame of a step is lost, duplicated, reordered, delayed and damaged in
// turn, connections are cut, and what arrives must be what was sent.
#include <atomic>
#include <filesystem>
#include <functional>
#include <thread>

#include <gmock/gmock.h>

#include "millrace/core/random.hpp"
#include "millrace/transport/endpoint.hpp"
#include "millrace/transport/private_directory.hpp"
#include "millrace/transport/zeromq.hpp"
#include "transport/conformance.hpp"
#include "transport/cutting_proxy.hpp"
#include "transport/fault_proxy.hpp"
#include "transport/three_ranks.hpp"
#include "transport/zeromq/address.hpp"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using namespace testing_transport;

/// Endpoints with the proxy in the middle.
class ProxiedMesh {
 public:
  explicit ProxiedMesh(const FaultPlan& plan,
                       const std::function<void(ZeroMqOptions&)>& change = {}) {
    ZeroMqOptions options = quick(directory_);
    if (change) change(options);
    const auto context = std::make_shared<ZeroMqContext>();
    std::vector<std::unique_ptr<ZeroMqListener>> listeners;
    std::vector<PeerAddress> addresses;
    for (int i = 0; i < options.world; ++i) {
      options.rank = Rank{i};
      listeners.push_back(std::make_unique<ZeroMqListener>(options, context));
      addresses.push_back(listeners.back()->address());
    }
    proxy_ = std::make_unique<FaultProxy>(addresses, directory_.path(), plan);
    for (const auto& listener : listeners) ends.push_back(listener->open(proxy_->addresses()));
  }

 private:
  PrivateDirectory directory_{std::filesystem::temp_directory_path()};
  std::unique_ptr<FaultProxy> proxy_;

 public:
  Endpoints ends;
};

void run_steps(std::uint64_t steps, const FaultPlan& plan, int attempts = 8) {
  ProxiedMesh mesh(plan, [&](ZeroMqOptions& options) { options.attempts = attempts; });
  on_every_rank(mesh.ends, [&](Endpoint& end) {
    for (std::uint64_t step = 0; step < steps; ++step) one_step(end, step);
    end.leave(soon());
  });
}

TEST(ZeroMqFaults, EveryFrame_SurvivesEveryFault) {
  std::uint64_t frames = 0;
  run_steps(1, [&](bool data, std::uint64_t number) {
    if (data) frames = std::max(frames, number + 1);
    return Fault::None;
  });
  ASSERT_GE(frames, 16U);  // 2 x 2 activations of two tensors, 2 x 2 gradients, 4 parts of a sum

  for (const Fault fault :
       {Fault::Lose, Fault::Duplicate, Fault::Reorder, Fault::Delay, Fault::Damage})
    for (std::uint64_t victim = 0; victim < frames; ++victim) {
      SCOPED_TRACE("fault " + std::to_string(static_cast<int>(fault)) + " of frame " +
                   std::to_string(victim));
      run_steps(1, [&](bool data, std::uint64_t number) {
        return data && number == victim ? fault : Fault::None;
      });
      ASSERT_FALSE(testing::Test::HasFailure());
    }
}

TEST(ZeroMqFaults, RandomFaults_ChangeNothing) {
  // 3 of 100 frames meet a fault, acknowledgements and shutdown messages too.
  run_steps(
      150,
      [](bool data, std::uint64_t number) {
        const RandomKey key{.seed = 11, .step = data ? 1U : 2U};
        if (random_below(key, static_cast<std::uint32_t>(2 * number), 100) >= 3) return Fault::None;
        return static_cast<Fault>(1 +
                                  random_below(key, static_cast<std::uint32_t>(2 * number + 1), 5));
      },
      12);
}

TEST(ZeroMqFaults, AnsweredTensors_NeedNoControlMessages) {
  // Room for one message each way: the second is sent because the answer said that the first was
  // taken. Nothing else could say it, all control messages are lost.
  std::atomic<bool> deaf = true;
  ProxiedMesh mesh(
      [&](bool data, std::uint64_t) { return !data && deaf ? Fault::Lose : Fault::None; },
      [](ZeroMqOptions& options) {
        options.world = 2;
        options.attempts = 1000;
        options.depths = {{Rank{0}, Rank{1}, Direction::Forward, 1, true},
                          {Rank{1}, Rank{0}, Direction::Backward, 1, true}};
      });

  on_every_rank(mesh.ends, [&](Endpoint& end) {
    const Rank other{1 - end.rank().value};
    for (std::uint64_t step = 0; step < 50; ++step) {
      const MessageTag there = tag_of(Direction::Forward, 1, 0, step);
      const MessageTag back = tag_of(Direction::Backward, 0, 0, step);
      if (end.rank() == Rank{1}) (void)end.receive(other, there, soon());
      end.send(other, other == Rank{1} ? there : back, TensorList(value(0, 0, step)));
      if (other == Rank{1}) (void)end.receive(other, back, soon());
    }
    deaf = false;
    end.leave(soon());
  });
}

TEST(ZeroMqFaults, ACutConnectionFullOfDataLosesNothing) {
  constexpr int kMessages = 24;
  constexpr std::int64_t kBytes = 1 << 20;
  ZeroMqOptions options;
  options.world = 2;
  options.link = ZeroMqLink::Tcp;
  options.insecure = true;
  options.probe_after = 4ms;  // so that many probes wait after the data
  const auto context = std::make_shared<ZeroMqContext>();
  ZeroMqListener sender_listener(options, context);
  options.rank = Rank{1};
  ZeroMqListener receiver_listener(options, context);
  const auto real = zeromq::socket_addresses(receiver_listener.address());
  CuttingProxy proxy(real.data, 20'000);
  const std::vector<PeerAddress> addresses = {
      sender_listener.address(), zeromq::peer_address({proxy.address(), real.control})};
  Endpoints ends;
  ends.push_back(sender_listener.open(addresses));
  ends.push_back(receiver_listener.open(addresses));

  on_every_rank(ends, [&](Endpoint& end) {
    MessageTag tag;
    for (; tag.step < kMessages; ++tag.step) {
      const Tensor sample = filled(DType::U8, {kBytes}, static_cast<int>(tag.step));
      if (end.rank() == Rank{0})
        end.send(Rank{1}, tag, TensorList(sample.clone()));
      else
        EXPECT_TRUE(same(end.receive(Rank{0}, tag, soon())[0], sample));
      if (end.rank() == Rank{1} && tag.step == 3) proxy.cut();
    }
    end.leave(soon());
  });
}

TEST(ZeroMqFaults, AlwaysDamagedFrame_EndsTheEpoch) {
  const ProxiedMesh mesh(
      [](bool data, std::uint64_t) { return data ? Fault::Damage : Fault::None; },
      [](ZeroMqOptions& options) { options.attempts = 3; });
  const Endpoints& ends = mesh.ends;

  ends[0]->send(Rank{1}, forward_tag(0), TensorList(value(1, 0, 0)));
  std::string message;
  try {
    (void)ends[1]->receive(Rank{0}, forward_tag(0), soon());
  } catch (const TransportError& error) {
    message = error.what();
  }

  EXPECT_EQ(message, "rank 1 refuses a frame of rank 0: payload hash");
  EXPECT_THROW((void)ends[2]->receive(Rank{0}, forward_tag(0), soon()), TransportError);
}

TEST(ZeroMqFaults, LostPeer_IsNamedWithAllActions) {
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  Endpoints ends = zeromq_mesh(quick(directory));
  std::string message;

  std::jthread waiting([&] {
    try {
      (void)ends[1]->receive(Rank{0}, forward_tag(3), soon());
    } catch (const PeerLost& error) {
      message = error.what();
    }
  });
  await_wait(*ends[1]);
  ends[0].reset();  // no shutdown message
  waiting.join();

  EXPECT_THAT(message, testing::HasSubstr("lost rank 0: its connection ended; everyone waits"));
  EXPECT_THAT(message,
              testing::HasSubstr("rank 1 waits for activation for stage 1, micro-batch 3"));
  EXPECT_THAT(message, testing::HasSubstr("rank 2"));
}

}  // namespace
}  // namespace millrace
