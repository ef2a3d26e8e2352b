// Meeting: every difference between ranks is named on every rank, and nobody's place is taken.
#include "millrace/transport/rendezvous.hpp"

#include <array>
#include <filesystem>
#include <fstream>
#include <thread>
#include <tuple>

#include <gmock/gmock.h>
#include <zmq.hpp>
#include <zmq_addon.hpp>

#include "millrace/core/error.hpp"
#include "millrace/transport/failure.hpp"
#include "millrace/transport/private_directory.hpp"
#include "millrace/transport/zeromq.hpp"
#include "transport/conformance.hpp"
#include "transport/meeting_campaign.hpp"
#include "transport/repetitions.hpp"
#include "transport/wire/control.hpp"

namespace millrace {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing_transport::soon;

/// Lets `world` ranks meet, with `change` applied to the fields of the last, and returns what went
/// wrong on each; empty where a message went round.
std::vector<std::string> outcome_of_meeting(int world, const HelloFields& last) {
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  const auto context = std::make_shared<ZeroMqContext>();
  const HelloFields common = {{"library", "1"}, {"plan", "abc"}, {"model", "mlp"}, {"data", "1"}};
  std::vector<std::string> outcomes(static_cast<std::size_t>(world));
  {
    std::vector<std::jthread> ranks;
    for (int i = 0; i < world; ++i)
      ranks.emplace_back([&, i] {
        ZeroMqOptions options;
        options.rank = Rank{i};
        options.world = world;
        options.directory = directory.path();
        const RendezvousOptions rendezvous{.url = "ipc://" + directory.path() + "/rendezvous",
                                           .fields = i + 1 == world ? last : common,
                                           .patience = std::chrono::seconds(20)};
        try {
          const auto end = meet(rendezvous, ZeroMqListener(options, context));
          end->send(Rank{(i + 1) % world}, {}, TensorList());
          (void)end->receive(Rank{(i + world - 1) % world}, {}, soon());
          end->goodbye(soon());
        } catch (const Mismatch& error) {
          outcomes[static_cast<std::size_t>(i)] = error.what();
        }
      });
  }
  return outcomes;
}

TEST(Rendezvous, RanksThatAgreeAreConnected) {
  EXPECT_THAT(
      outcome_of_meeting(4, {{"library", "1"}, {"plan", "abc"}, {"model", "mlp"}, {"data", "1"}}),
      Each(""));
}

TEST(Rendezvous, EveryDifferenceIsNamedOnEveryRank) {
  const HelloFields common = {{"library", "1"}, {"plan", "abc"}, {"model", "mlp"}, {"data", "1"}};
  for (std::size_t i = 0; i < common.size(); ++i) {
    HelloFields other = common;
    other[i].second = "other";
    EXPECT_THAT(outcome_of_meeting(3, other),
                Each(common[i].first + " differs: rank 0 has '" + common[i].second +
                     "', rank 2 has 'other'"));
  }
}

/// What `meet` throws as a Mismatch for one rank of a world that meets in `directory`.
std::string refusal_of(const std::string& directory,
                       int rank,
                       int world,
                       std::chrono::seconds patience = std::chrono::seconds(20)) {
  ZeroMqOptions options;
  options.rank = Rank{rank};
  options.world = world;
  options.directory = directory;
  try {
    (void)meet({.url = "ipc://" + directory + "/rendezvous", .patience = patience},
               ZeroMqListener(options, std::make_shared<ZeroMqContext>()));
  } catch (const Mismatch& error) {
    return error.what();
  }
  return "no mismatch";
}

TEST(Rendezvous, AnotherSizeOfTheWorldIsNamedOnBothSides) {
  // {rank 0's world, visitor, visitor's world}: one for which rank 0 has no place, and one after
  // which rank 0 would wait for rank 2 for ever.
  for (const auto& [ours, rank, theirs] : {std::tuple{2, 3, 4}, std::tuple{3, 1, 2}}) {
    const PrivateDirectory directory(std::filesystem::temp_directory_path());
    std::string told;
    std::jthread visitor(
        [&, rank = rank, theirs = theirs] { told = refusal_of(directory.path(), rank, theirs); });
    const std::string found = refusal_of(directory.path(), 0, ours, std::chrono::seconds(1));
    visitor.join();

    EXPECT_EQ(found,
              "world differs: rank 0 has '" + std::to_string(ours) + "', rank " +
                  std::to_string(rank) + " has '" + std::to_string(theirs) + "'");
    EXPECT_EQ(told, found);
  }
}

/// A frame as another version of the protocol would write it: same size and magic number, and who
/// knows what else.
std::array<zmq::message_t, 2> of_version(std::uint16_t version, Rank from, Rank to) {
  Envelope envelope;
  envelope.source = from;
  envelope.destination = to;
  FrameBytes bytes = encode(envelope, Hello{}).header;
  bytes[4] = static_cast<std::byte>(version);
  bytes[20] = std::byte{77};
  // Headers of other versions have other sizes.
  return {zmq::message_t(bytes.data(), bytes.size() - 32), zmq::message_t()};
}

TEST(Rendezvous, AnotherProtocolVersionIsNamedByRankZero) {
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  zmq::context_t context;
  zmq::socket_t visitor(context, zmq::socket_type::dealer);
  visitor.set(zmq::sockopt::routing_id, "r1");
  visitor.set(zmq::sockopt::linger, 0);
  visitor.connect("ipc://" + directory.path() + "/rendezvous");
  zmq::send_multipart(visitor, of_version(3, Rank{1}, Rank{0}));

  EXPECT_EQ(refusal_of(directory.path(), 0, 2), "protocol differs: rank 0 has '4', rank 1 has '3'");
}

TEST(Rendezvous, AnotherProtocolVersionIsNamedByAVisitor) {
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  zmq::context_t context;
  zmq::socket_t host(context, zmq::socket_type::router);
  host.set(zmq::sockopt::linger, 0);
  host.bind("ipc://" + directory.path() + "/rendezvous");
  std::string refusal;
  std::jthread visitor([&] { refusal = refusal_of(directory.path(), 1, 2); });
  std::vector<zmq::message_t> hello;
  ASSERT_TRUE(zmq::recv_multipart(host, std::back_inserter(hello)));
  host.send(hello.front(), zmq::send_flags::sndmore);
  zmq::send_multipart(host, of_version(3, Rank{0}, Rank{1}));
  visitor.join();

  EXPECT_EQ(refusal, "protocol differs: rank 0 has '3', rank 1 has '4'");
}

/// What `meet` throws for rank 0 of a world of two that meets in `directory`.
std::string complaint_of_rank_zero(const std::string& directory) {
  ZeroMqOptions options;
  options.world = 2;
  options.directory = directory;
  try {
    (void)meet(
        {.url = "ipc://" + directory + "/rendezvous", .patience = std::chrono::milliseconds(1)},
        ZeroMqListener(options, std::make_shared<ZeroMqContext>()));
  } catch (const TransportError& error) {
    return error.what();
  }
  return {};
}

TEST(Rendezvous, APlaceWhereSomebodyListensOrSomethingLiesIsLeftAlone) {
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  const std::string path = directory.path() + "/rendezvous";
  {
    zmq::context_t context;
    zmq::socket_t other(context, zmq::socket_type::router);
    other.bind("ipc://" + path);
    EXPECT_EQ(complaint_of_rank_zero(directory.path()),
              path + " exists already: another process has this rank");
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  // The network library left the file: nobody listens there.
  EXPECT_TRUE(std::filesystem::exists(path));
  EXPECT_THAT(complaint_of_rank_zero(directory.path()), HasSubstr("missing rank 1"));

  std::ofstream(path) << "precious";
  EXPECT_EQ(complaint_of_rank_zero(directory.path()), path + " exists already, and is no socket");
  EXPECT_EQ(std::filesystem::file_size(path), 8U);
}

TEST(Rendezvous, EndsWithAddressesOrASentenceWhateverIsSaidThere) {
  const MeetingResult all =
      run_meeting_campaign(1, static_cast<int>(testing_transport::times(2000)));

  EXPECT_EQ(all.wrong, "");
  EXPECT_GT(all.met, 0);
  EXPECT_GT(all.differed, 0);
  EXPECT_GT(all.ended, 0);
}

}  // namespace
}  // namespace millrace
