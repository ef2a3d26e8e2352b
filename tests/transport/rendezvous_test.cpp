// Identity and rendezvous: who says what, and that every difference is named on every rank.
#include "millrace/transport/rendezvous.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <thread>
#include <tuple>

#include <gmock/gmock.h>
#include <zmq.hpp>
#include <zmq_addon.hpp>

#include "millrace/core/error.hpp"
#include "millrace/transport/environment.hpp"
#include "millrace/transport/failure.hpp"
#include "millrace/transport/frame.hpp"
#include "transport/conformance.hpp"

namespace millrace {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing_transport::soon;

TEST(Environment, EveryEngineIsUnderstood) {
  const std::vector<Variables> engines = {
      {{"MILLRACE_RANK", "2"}, {"MILLRACE_WORLD", "4"}},
      {{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}},
      {{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"}, {"SLURM_STEP_ID", "0"}},
      {{"RANK", "2"}, {"WORLD_SIZE", "4"}},
      {{"JOB_COMPLETION_INDEX", "2"}, {"MILLRACE_WORLD", "4"}}};
  for (const Variables& variables : engines) {
    const Identity identity = find_identity({}, variables);
    EXPECT_EQ(identity.rank, 2) << variables.begin()->first;
    EXPECT_EQ(identity.world, 4) << variables.begin()->first;
  }
}

TEST(Environment, TwoSourcesThatAgreeAreFineAndTwoThatDisagreeAreRefused) {
  Variables variables = {
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"SLURM_PROCID", "1"}, {"SLURM_STEP_ID", "7"}};
  EXPECT_EQ(find_identity({.rank = 1, .world = 2}, variables).rank, 1);

  variables["SLURM_PROCID"] = "0";
  try {
    (void)find_identity({}, variables);
    FAIL() << "two ranks at once";
  } catch (const Mismatch& error) {
    EXPECT_STREQ(error.what(), "the rank is 0 by SLURM_PROCID, but 1 by RANK");
  }
  EXPECT_THROW((void)find_identity({.world = 3}, {{"WORLD_SIZE", "2"}}), Mismatch);
}

TEST(Environment, ABatchScriptOfSlurmIsNoRankOfIt) {
  Variables variables = {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}};
  EXPECT_EQ(find_identity({}, variables).rank, std::nullopt);
  variables.insert({{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}});
  for (const char* step : {"", "4294967291", "4294967290", "none"}) {
    if (*step != '\0') variables["SLURM_STEP_ID"] = step;
    EXPECT_EQ(find_identity({}, variables).rank, 3) << step;
    EXPECT_EQ(find_identity({}, variables).world, 4) << step;
  }
  variables["SLURM_STEP_ID"] = "0";
  EXPECT_THROW((void)find_identity({}, variables), Mismatch);
}

TEST(Environment, NonsenseIsRefusedWithItsName) {
  EXPECT_THROW((void)find_identity({}, {{"RANK", "x"}}), InvalidArgument);
  EXPECT_THROW((void)find_identity({}, {{"RANK", "-1"}}), InvalidArgument);
  EXPECT_THROW((void)find_identity({}, {{"RANK", "2"}, {"WORLD_SIZE", "2"}}), InvalidArgument);
  EXPECT_EQ(find_identity({}, {}).rank, std::nullopt);
  EXPECT_EQ(find_identity({}, {{"MASTER_ADDR", "h"}, {"MASTER_PORT", "9"}}).rendezvous,
            "tcp://h:9");
}

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
          const auto end = meet(rendezvous, options, context);
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
               options,
               std::make_shared<ZeroMqContext>());
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
  FrameHeader header;
  header.kind = FrameKind::Hello;
  header.source = from;
  header.destination = to;
  FrameBytes bytes = encode(header);
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
  zmq::send_multipart(visitor, of_version(1, Rank{1}, Rank{0}));

  EXPECT_EQ(refusal_of(directory.path(), 0, 2), "protocol differs: rank 0 has '2', rank 1 has '1'");
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
  zmq::send_multipart(host, of_version(1, Rank{0}, Rank{1}));
  visitor.join();

  EXPECT_EQ(refusal, "protocol differs: rank 0 has '1', rank 1 has '2'");
}

/// What rank 0 says to rank 1.
void tell_visitor(zmq::socket_t& host,
                  zmq::message_t& identity,
                  FrameKind kind,
                  const std::string& text) {
  FrameHeader header;
  header.kind = kind;
  header.destination = Rank{1};
  header.payload_bytes = text.size();
  const FrameBytes bytes = encode(header);
  host.send(identity, zmq::send_flags::sndmore);
  host.send(zmq::const_buffer(bytes.data(), bytes.size()), zmq::send_flags::sndmore);
  host.send(zmq::const_buffer(text.data(), text.size()), zmq::send_flags::none);
}

/// What `meet` throws as PeerHangs; empty where all met.
std::string hang_of(const RendezvousOptions& rendezvous, const ZeroMqOptions& options) {
  try {
    (void)meet(rendezvous, options, std::make_shared<ZeroMqContext>());
  } catch (const PeerHangs& error) {
    return error.what();
  }
  return {};
}

/// An address of this machine at which nobody listens.
std::string unused_address() {
  zmq::context_t context;
  zmq::socket_t socket(context, zmq::socket_type::router);
  socket.bind("tcp://127.0.0.1:0");
  return socket.get(zmq::sockopt::last_endpoint);
}

TEST(Rendezvous, ARankWithoutKeysAndOneWithKeysGiveUpWhenPatienceEnds) {
  std::vector<CurveKeys> keys;
  std::vector<std::string> public_keys;
  for (int i = 0; i < 2; ++i) {
    keys.push_back(make_curve_keys());
    public_keys.push_back(keys.back().public_key);
  }
  for (const int keyed : {0, 1}) {
    const std::string url = unused_address();
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
              hang_of({.url = url, .patience = std::chrono::milliseconds(800)}, options);
        });
    }
    EXPECT_THAT(reports[0], HasSubstr("missing rank 1"));
    EXPECT_THAT(reports[1], HasSubstr("rank 0 does not answer"));
  }
}

TEST(Rendezvous, VisitorsThatGreetOnDoNotKeepRankZeroFromGivingUp) {
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
        reports[static_cast<std::size_t>(i)] =
            hang_of({.url = "ipc://" + directory.path() + "/rendezvous",
                     .patience = i == 0 ? std::chrono::milliseconds(900) : std::chrono::hours(1)},
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
                    options,
                    std::make_shared<ZeroMqContext>());
  });
  std::vector<zmq::message_t> hello;
  ASSERT_TRUE(zmq::recv_multipart(host, std::back_inserter(hello)));
  std::string table;
  for (int i = 0; i < kWorld; ++i) {
    const std::string place = "ipc://" + directory.path() + "/r" + std::to_string(i) + ".0.";
    table += place + "data\n" + place + "control\n";
  }
  tell_visitor(host, hello.front(), FrameKind::Welcome, table);
  visitor.join();

  ASSERT_NE(endpoint, nullptr);
  EXPECT_EQ(endpoint->world(), kWorld);
}

TEST(Rendezvous, ARankZeroThatFallsSilentIsNamedBeforePatienceEnds) {
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
    options.silence = std::chrono::milliseconds(100);
    report = hang_of(
        {.url = "ipc://" + directory.path() + "/rendezvous", .patience = std::chrono::hours(1)},
        options);
  });
  std::vector<zmq::message_t> hello;
  ASSERT_TRUE(zmq::recv_multipart(host, std::back_inserter(hello)));
  tell_visitor(host, hello.front(), FrameKind::Progress, " rank 2");
  visitor.join();

  EXPECT_THAT(report, HasSubstr("rank 0 does not answer at ipc://"));
  EXPECT_THAT(report, HasSubstr("everyone waits for rank 0: its welcome, since "));
}

/// What `meet` throws for rank 0 of a world of two that meets in `directory`.
std::string complaint_of_rank_zero(const std::string& directory) {
  ZeroMqOptions options;
  options.world = 2;
  options.directory = directory;
  try {
    (void)meet(
        {.url = "ipc://" + directory + "/rendezvous", .patience = std::chrono::milliseconds(1)},
        options,
        std::make_shared<ZeroMqContext>());
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

TEST(Rendezvous, AMeetingLastsAsLongAsOneAfterTheOtherComesAndTellsHowManyAreThere) {
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  std::vector<int> told;
  const auto come = [&](int rank) {
    ZeroMqOptions options;
    options.rank = Rank{rank};
    options.world = 3;
    options.directory = directory.path();
    return meet({.url = "ipc://" + directory.path() + "/rendezvous",
                 .patience = std::chrono::seconds(2),
                 .progress = [&](int came) { told.push_back(came); }},
                options,
                std::make_shared<ZeroMqContext>());
  };
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    if (rank > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1200));
    ranks.emplace_back([&, rank] { EXPECT_EQ(come(rank)->world(), 3); });
  }
  ranks.clear();

  ASSERT_FALSE(told.empty());  // by rank 0, once a second
  EXPECT_EQ(told.front(), 1);
  EXPECT_TRUE(std::is_sorted(told.begin(), told.end()));
}

TEST(Rendezvous, MissingRanksAreNamedAtTheDeadline) {
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  ZeroMqOptions options;
  options.world = 3;
  options.directory = directory.path();
  const RendezvousOptions rendezvous{.url = "ipc://" + directory.path() + "/rendezvous",
                                     .fields = {},
                                     .patience = std::chrono::milliseconds(50)};
  try {
    (void)meet(rendezvous, options, std::make_shared<ZeroMqContext>());
    FAIL() << "nobody came";
  } catch (const TransportError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("missing rank 1 rank 2; everyone waits for rank 1: its hello, since 0."));
  }
}

}  // namespace
}  // namespace millrace
