// What every backend's listener owes a meeting, whatever it listens at: the same claims over
// mailboxes, ipc and tcp. What only sockets can suffer stands in rendezvous_test.cpp.
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include "millrace/core/error.hpp"
#include "millrace/transport/failure.hpp"
#include "millrace/transport/in_process.hpp"
#include "millrace/transport/private_directory.hpp"
#include "millrace/transport/rendezvous.hpp"
#include "millrace/transport/zeromq.hpp"
#include "support/free_address.hpp"
#include "transport/conformance.hpp"

namespace millrace {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing_transport::soon;

/// Listeners of all ranks of a world, and where they meet.
struct World {
  std::vector<std::unique_ptr<Listener>> listeners;
  std::string url;
};

struct Backend {
  const char* name;
  std::function<World(int world, const std::string& directory)> listen;
};

World in_process(int world, const std::string& directory) {
  InProcessHub hub(world);
  World all{{}, directory};
  for (int i = 0; i < world; ++i) all.listeners.push_back(hub.listener(Rank{i}));
  return all;
}

World zeromq(ZeroMqLink link, int world, const std::string& directory) {
  const auto context = std::make_shared<ZeroMqContext>();
  const bool ipc = link == ZeroMqLink::Ipc;
  World all{{}, ipc ? "ipc://" + directory + "/rendezvous" : test::free_address()};
  ZeroMqOptions options;
  options.world = world;
  options.link = link;
  options.insecure = !ipc;
  if (ipc) options.directory = directory;
  for (int i = 0; i < world; ++i) {
    options.rank = Rank{i};
    all.listeners.push_back(std::make_unique<ZeroMqListener>(options, context));
  }
  return all;
}

class MeetingConformance : public testing::TestWithParam<Backend> {
 protected:
  /// Has all ranks meet, `fields` by rank; what each of them met with, empty where a message went
  /// round.
  std::vector<std::string> meet_all(
      World& world,
      const std::function<HelloFields(int)>& fields,
      std::chrono::milliseconds patience = std::chrono::seconds(20)) const {
    const int size = static_cast<int>(world.listeners.size());
    std::vector<std::string> outcomes(world.listeners.size());
    std::vector<std::jthread> ranks;
    for (int i = 0; i < size; ++i) {
      auto& listener = world.listeners[static_cast<std::size_t>(i)];
      if (!listener) continue;
      ranks.emplace_back([&, i] {
        try {
          const auto end = meet({.url = world.url, .fields = fields(i), .patience = patience},
                                std::move(*listener));
          end->send(Rank{(i + 1) % size}, {}, TensorList());
          (void)end->receive(Rank{(i + size - 1) % size}, {}, soon());
          end->goodbye(soon());
        } catch (const Error& error) {
          outcomes[static_cast<std::size_t>(i)] = error.what();
        }
      });
    }
    ranks.clear();
    return outcomes;
  }

  World listen(int world) const { return GetParam().listen(world, directory_.path()); }

 private:
  PrivateDirectory directory_{std::filesystem::temp_directory_path()};
};

TEST_P(MeetingConformance, RanksThatAgreeAreConnected) {
  World world = listen(4);
  EXPECT_THAT(meet_all(world, [](int) { return HelloFields{{"plan", "abc"}}; }), Each(""));
}

TEST_P(MeetingConformance, ADifferenceIsNamedOnEveryRank) {
  World world = listen(3);
  const auto plan = [](int rank) { return HelloFields{{"plan", rank == 2 ? "def" : "abc"}}; };
  EXPECT_THAT(meet_all(world, plan), Each("plan differs: rank 0 has 'abc', rank 2 has 'def'"));
}

TEST_P(MeetingConformance, WhoDoesNotComeIsNamedOnAllThatCame) {
  World world = listen(3);
  world.listeners[1].reset();
  const auto outcomes = meet_all(
      world, [](int) { return HelloFields{}; }, std::chrono::milliseconds(700));
  EXPECT_THAT(outcomes[0], HasSubstr("missing rank 1; everyone waits for rank 1: its hello"));
  EXPECT_EQ(outcomes[2], outcomes[0]);
}

TEST_P(MeetingConformance, AWorldOfOneMeetsNobody) {
  World world = listen(1);
  world.url = "nowhere";
  EXPECT_EQ(meet({.url = world.url}, std::move(*world.listeners[0]))->world(), 1);
}

TEST_P(MeetingConformance, AnAddressIsALineThatOnlyItsBackendReads) {
  World world = listen(2);
  std::vector<PeerAddress> addresses;
  for (const auto& listener : world.listeners) {
    addresses.push_back(listener->address());
    EXPECT_EQ(addresses.back().text.find('\n'), std::string::npos);
  }
  EXPECT_NE(addresses[0], addresses[1]);
  const std::vector<PeerAddress> strange = {addresses[0], {"somewhere else"}};
  EXPECT_THROW((void)world.listeners[0]->open(strange), TransportError);
  EXPECT_THROW((void)world.listeners[0]->open(addresses), InvalidArgument);  // once
  EXPECT_THROW((void)world.listeners[1]->open({addresses[0]}), InvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         MeetingConformance,
                         testing::Values(Backend{"in_process", in_process},
                                         Backend{"ZeroMqIpc",
                                                 [](int world, const std::string& directory) {
                                                   return zeromq(ZeroMqLink::Ipc, world, directory);
                                                 }},
                                         Backend{"ZeroMqTcp",
                                                 [](int world, const std::string& directory) {
                                                   return zeromq(ZeroMqLink::Tcp, world, directory);
                                                 }}),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace millrace
