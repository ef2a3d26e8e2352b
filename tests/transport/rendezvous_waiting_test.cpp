// Waiting for ranks to meet: who is late is waited for, who does not come or falls silent is named.
#include <algorithm>
#include <array>
#include <filesystem>
#include <thread>

#include <gmock/gmock.h>
#include <zmq.hpp>
#include <zmq_addon.hpp>

#include "millrace/transport/endpoint.hpp"
#include "millrace/transport/listener.hpp"
#include "millrace/transport/private_directory.hpp"
#include "millrace/transport/zeromq.hpp"
#include "support/free_address.hpp"
#include "transport/wire/control.hpp"
#include "transport/zeromq/address.hpp"

namespace millrace {
namespace {

using testing::Each;
using testing::HasSubstr;

/// What rank 0 says to rank 1.
void tell_visitor(zmq::socket_t& host, zmq::message_t& identity, const Control& control) {
  Envelope envelope;
  envelope.destination = Rank{1};
  const ControlBytes bytes = encode(envelope, control);
  host.send(identity, zmq::send_flags::sndmore);
  host.send(zmq::buffer(bytes.header), zmq::send_flags::sndmore);
  host.send(zmq::buffer(bytes.text), zmq::send_flags::none);
}

/// What `meet` throws as PeerHangs; empty where all met.
std::string hang_of(const RendezvousOptions& rendezvous, const ZeroMqOptions& options) {
  try {
    (void)meet(rendezvous, ZeroMqListener(options, std::make_shared<ZeroMqContext>()));
  } catch (const PeerHangs& error) {
    return error.what();
  }
  return {};
}

TEST(Rendezvous, MixedKeys_EndAtTheTimeout) {
  std::vector<CurveKeys> keys;
  std::vector<std::string> public_keys;
  for (int i = 0; i < 2; ++i) {
    keys.push_back(make_curve_keys());
    public_keys.push_back(keys.back().public_key);
  }
  for (const int keyed : {0, 1}) {
    const std::string url = test::free_address();
    std::array<std::string, 2> reports;
    {
      std::vector<std::jthread> ranks;
      for (int i = 0; i < 2; ++i)
        ranks.emplace_back([&, i] {
          ZeroMqOptions options;
          options.rank = Rank{i};
          options.world = 2;
          options.link = ZeroMqLink::Tcp;
          options.insecure = i != keyed;
          if (i == keyed) options.keys = {keys[static_cast<std::size_t>(i)], public_keys};
          reports[static_cast<std::size_t>(i)] =
              hang_of({.url = url, .join_timeout = std::chrono::milliseconds(800)}, options);
        });
    }
    EXPECT_THAT(reports[0], HasSubstr("missing rank 1"));
    EXPECT_THAT(reports[1], HasSubstr("rank 0 does not answer"));
  }
}

TEST(Rendezvous, RepeatedHellos_DoNotExtendTheTimeout) {
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  std::array<std::string, 3> reports;
  {
    std::vector<std::jthread> ranks;
    for (int i = 0; i < 3; ++i) {
      ranks.emplace_back([&, i] {
        ZeroMqOptions options;
        options.rank = Rank{i};
        options.world = 4;
        options.directory = directory.path();
        reports[static_cast<std::size_t>(i)] = hang_of(
            {.url = "ipc://" + directory.path() + "/rendezvous",
             .join_timeout = i == 0 ? std::chrono::milliseconds(900) : std::chrono::hours(1)},
            options);
      });
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // out of step
    }
  }
  EXPECT_THAT(reports, Each(HasSubstr("missing rank 3; everyone waits for rank 3: its hello")));
}

TEST(Rendezvous, TheWelcomeOfAWorldOfAHundredRanksIsRead) {
  constexpr int kWorld = 100;
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  zmq::context_t context;
  zmq::socket_t host(context, zmq::socket_type::router);
  host.set(zmq::sockopt::linger, 0);
  host.bind("ipc://" + directory.path() + "/rendezvous");
  std::unique_ptr<Endpoint> endpoint;
  std::jthread visitor([&] {
    ZeroMqOptions options;
    options.rank = Rank{1};
    options.world = kWorld;
    options.directory = directory.path();
    endpoint = meet({.url = "ipc://" + directory.path() + "/rendezvous"},
                    ZeroMqListener(options, std::make_shared<ZeroMqContext>()));
  });
  std::vector<zmq::message_t> hello;
  ASSERT_TRUE(zmq::recv_multipart(host, std::back_inserter(hello)));
  std::string table;
  for (int i = 0; i < kWorld; ++i) {
    const std::string place = "ipc://" + directory.path() + "/r" + std::to_string(i) + ".0.";
    table += zeromq::peer_address({place + "data", place + "control"}).text + "\n";
  }
  tell_visitor(host, hello.front(), Welcome{table});
  visitor.join();

  ASSERT_NE(endpoint, nullptr);
  EXPECT_EQ(endpoint->world(), kWorld);
}

TEST(Rendezvous, SilentRankZero_IsNamedBeforeTheTimeout) {
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  zmq::context_t context;
  zmq::socket_t host(context, zmq::socket_type::router);
  host.set(zmq::sockopt::linger, 0);
  host.bind("ipc://" + directory.path() + "/rendezvous");
  std::string report;
  std::jthread visitor([&] {
    ZeroMqOptions options;
    options.rank = Rank{1};
    options.world = 3;
    options.directory = directory.path();
    report = hang_of({.url = "ipc://" + directory.path() + "/rendezvous",
                      .join_timeout = std::chrono::hours(1),
                      .heartbeat_timeout = std::chrono::milliseconds(100)},
                     options);
  });
  std::vector<zmq::message_t> hello;
  ASSERT_TRUE(zmq::recv_multipart(host, std::back_inserter(hello)));
  tell_visitor(host, hello.front(), Missing{" rank 2"});
  visitor.join();

  EXPECT_THAT(report, HasSubstr("rank 0 does not answer at ipc://"));
  EXPECT_THAT(report, HasSubstr("everyone waits for rank 0: its welcome, since "));
}

TEST(Rendezvous, LateRank_RestartsTimeout) {
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  std::vector<int> reported;
  const auto come = [&](int rank) {
    ZeroMqOptions options;
    options.rank = Rank{rank};
    options.world = 3;
    options.directory = directory.path();
    return meet({.url = "ipc://" + directory.path() + "/rendezvous",
                 .join_timeout = std::chrono::seconds(2),
                 .progress = [&](int came) { reported.push_back(came); }},
                ZeroMqListener(options, std::make_shared<ZeroMqContext>()));
  };
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    if (rank > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1200));
    ranks.emplace_back([&, rank] { EXPECT_EQ(come(rank)->world(), 3); });
  }
  ranks.clear();

  ASSERT_FALSE(reported.empty());  // by rank 0, once a second
  EXPECT_EQ(reported.front(), 1);
  EXPECT_TRUE(std::is_sorted(reported.begin(), reported.end()));
}

TEST(Rendezvous, MissingRanksAreNamedAtTheDeadline) {
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  ZeroMqOptions options;
  options.world = 3;
  options.directory = directory.path();
  const RendezvousOptions rendezvous{.url = "ipc://" + directory.path() + "/rendezvous",
                                     .fields = {},
                                     .join_timeout = std::chrono::milliseconds(50)};
  try {
    (void)meet(rendezvous, ZeroMqListener(options, std::make_shared<ZeroMqContext>()));
    FAIL() << "no rank came";
  } catch (const TransportError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("missing rank 1 rank 2; everyone waits for rank 1: its hello, since 0."));
  }
}

}  // namespace
}  // namespace millrace
