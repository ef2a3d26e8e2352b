// Meeting: every difference between ranks is named on every rank, and no rank loses its place.
#include <array>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>
#include <thread>
#include <tuple>
#include <unistd.h>

#include <gmock/gmock.h>
#include <zmq.hpp>
#include <zmq_addon.hpp>

#include "millrace/core/error.hpp"
#include "millrace/transport/endpoint.hpp"
#include "millrace/transport/listener.hpp"
#include "millrace/transport/private_directory.hpp"
#include "millrace/transport/zeromq.hpp"
#include "support/free_address.hpp"
#include "transport/conformance.hpp"
#include "transport/meeting_campaign.hpp"
#include "transport/rendezvous/claims.hpp"
#include "transport/rendezvous/hello.hpp"
#include "transport/repetitions.hpp"
#include "transport/wire/control.hpp"

namespace millrace {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::StartsWith;
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
                                           .join_timeout = std::chrono::seconds(20)};
        try {
          const auto end = meet(rendezvous, ZeroMqListener(options, context));
          end->send(Rank{(i + 1) % world}, {}, TensorList());
          (void)end->receive(Rank{(i + world - 1) % world}, {}, soon());
          end->leave(soon());
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
    (void)meet({.url = "ipc://" + directory + "/rendezvous", .join_timeout = patience},
               ZeroMqListener(options, std::make_shared<ZeroMqContext>()));
  } catch (const Mismatch& error) {
    return error.what();
  }
  return "no mismatch";
}

/// A process that says it is a rank, by hand.
class Visitor {
 public:
  Visitor(const std::string& url, std::string word, Rank rank, int world)
      : word_(std::move(word)), rank_(rank), world_(world) {
    socket_.set(zmq::sockopt::routing_id, "r" + std::to_string(rank.value) + "-" + word_);
    socket_.set(zmq::sockopt::linger, 0);
    socket_.connect(url);
  }

  /// What rank 0 says to its hello.
  Control hello(const std::string& answers = {}) {
    const HelloFields fields = {{"protocol", std::to_string(kProtocolVersion)},
                                {"world", std::to_string(world_)}};
    Envelope envelope;
    envelope.source = rank_;
    const ControlBytes bytes =
        encode(envelope,
               Hello{hello_text(fields, {"tcp://" + word_ + ":1\ttcp://" + word_ + ":2"}) +
                     claimant_text({"process of " + word_, word_, answers})});
    socket_.send(zmq::buffer(bytes.header), zmq::send_flags::sndmore);
    socket_.send(zmq::buffer(bytes.text), zmq::send_flags::none);
    return heard();
  }

  Control heard() {
    std::vector<zmq::message_t> parts;
    EXPECT_TRUE(zmq::recv_multipart(socket_, std::back_inserter(parts)));
    Control control;
    Envelope ignored;
    const auto bytes = [&](std::size_t i) {
      return std::span(parts.at(i).data<const std::byte>(), parts.at(i).size());
    };
    EXPECT_EQ(decode(bytes(0), bytes(1), {0, 0, Rank{0}, rank_, 1U << 20U}, ignored, control),
              Refusal::None);
    return control;
  }

 private:
  std::string word_;
  Rank rank_;
  int world_;
  zmq::context_t context_;
  zmq::socket_t socket_{context_, zmq::socket_type::dealer};
};

/// What rank 0 and two processes that are rank 1 receive, of a world of four over tcp, where all
/// have an hour. The latter come when `ready`.
std::vector<std::string> refusals_of_two(const std::string& url,
                                         bool keyed,
                                         const std::shared_future<void>& ready) {
  std::vector<CurveKeys> keys;
  std::vector<std::string> public_keys;
  for (int i = 0; keyed && i < 4; ++i) {
    keys.push_back(make_curve_keys());
    public_keys.push_back(keys.back().public_key);
  }
  std::vector<std::string> refusals(3);
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < refusals.size(); ++i)
    threads.emplace_back([&, i] {
      if (i > 0) ready.wait();
      ZeroMqOptions options;
      options.rank = Rank{i == 0 ? 0 : 1};
      options.world = 4;
      options.link = ZeroMqLink::Tcp;
      options.insecure = !keyed;
      if (keyed) options.keys = {keys[options.rank.index()], public_keys};
      try {
        (void)meet({.url = url, .join_timeout = std::chrono::hours(1)},
                   ZeroMqListener(options, std::make_shared<ZeroMqContext>()));
      } catch (const Mismatch& error) {
        refusals[i] = error.what();
      }
    });
  threads.clear();
  return refusals;
}

TEST(Rendezvous, TwoProcessesWithOneRank_AreBothNamed) {
  const std::string process = "process " + std::to_string(::getpid()) + " on ";
  for (const bool keyed : {false, true}) {
    const std::string url = test::free_address();
    std::promise<void> ready;
    auto refusals = std::async(std::launch::async,
                               &refusals_of_two,
                               url,
                               keyed,
                               std::shared_future<void>(ready.get_future()));
    std::optional<Visitor> third;
    if (!keyed) {
      third.emplace(url, "127.0.0.3", Rank{3}, 4);
      EXPECT_TRUE(std::holds_alternative<Missing>(third->hello()));
    }
    ready.set_value();
    std::vector<std::string> heard = refusals.get();
    if (third) heard.push_back(std::get<Refused>(third->heard()).text);
    EXPECT_THAT(heard, Each(StartsWith("two processes have rank 1: " + process)));
    EXPECT_THAT(heard, Each(HasSubstr(" and " + process)));
  }
}

TEST(Claims, ProcessThatWasStartedAgain_IsNotAccused) {
  const auto hello = [](const std::string& word, const std::string& answers) {
    return hello_fields(claimant_text({"process of " + word, word, answers}));
  };
  const Claims::Clock::time_point now{};
  Claims claims;
  EXPECT_TRUE(claims.heard(Rank{1}, hello("a", ""), now));
  EXPECT_TRUE(claims.heard(Rank{1}, hello("a", ""), now));
  EXPECT_FALSE(claims.heard(Rank{1}, hello("b", ""), now));
  const std::string question = claims.question(Rank{1});
  EXPECT_FALSE(claims.heard(Rank{1}, hello("a", ""), now));  // was on its way when a ended
  EXPECT_TRUE(claims.heard(Rank{1}, hello("b", question), now));
  claims.settle(now);
  EXPECT_EQ(claims.question(Rank{1}), question);  // a may be slow
  claims.settle(now + std::chrono::seconds(1));
  EXPECT_EQ(claims.question(Rank{1}), "");
  EXPECT_TRUE(claims.heard(Rank{1}, hello("b", question), now));
  EXPECT_EQ(claims.conflict(), "");

  EXPECT_FALSE(claims.heard(Rank{1}, hello("a", question), now));  // it was there all the time
  const std::string again = claims.question(Rank{1});
  EXPECT_NE(again, question);
  for (const char* word : {"a", "b"}) EXPECT_TRUE(claims.heard(Rank{1}, hello(word, again), now));
  EXPECT_EQ(claims.conflict(), "two processes have rank 1: process of a and process of b");
}

TEST(Rendezvous, RankThatEndedAndCameAgain_IsMet) {
  const std::string url = test::free_address();
  const auto meet_as = [&](int rank) {
    ZeroMqOptions options;
    options.rank = Rank{rank};
    options.world = 3;
    options.link = ZeroMqLink::Tcp;
    options.insecure = true;
    return meet({.url = url, .join_timeout = std::chrono::hours(1)},
                ZeroMqListener(options, std::make_shared<ZeroMqContext>()));
  };
  std::unique_ptr<Endpoint> host;
  std::jthread first([&] { host = meet_as(0); });
  EXPECT_EQ(std::get<Missing>(Visitor(url, "127.0.0.1", Rank{1}, 3).hello()).text, " rank 2");
  Visitor again(url, "127.0.0.2", Rank{1}, 3);
  std::string text = std::get<Missing>(again.hello()).text;
  const std::string question = question_of(text);
  EXPECT_EQ(text, " rank 1 rank 2\n" + question);
  while (!question_of(text).empty()) text = std::get<Missing>(again.hello(question)).text;
  EXPECT_EQ(text, " rank 2");
  const auto last = meet_as(2);
  first.join();

  EXPECT_NE(host, nullptr);
  EXPECT_EQ(welcome_addresses(std::get<Welcome>(again.heard()).text).at(1).text,
            "tcp://127.0.0.2:1\ttcp://127.0.0.2:2");
}

TEST(Rendezvous, OtherWorldSize_IsNamedOnBothSides) {
  // {rank 0's world, visitor, visitor's world}: one for which rank 0 has no place, and one after
  // which rank 0 would wait for rank 2 for ever.
  for (const auto& [ours, rank, theirs] : {std::tuple{2, 3, 4}, std::tuple{3, 1, 2}}) {
    const PrivateDirectory directory(std::filesystem::temp_directory_path());
    std::string reported;
    std::jthread visitor([&, rank = rank, theirs = theirs] {
      reported = refusal_of(directory.path(), rank, theirs);
    });
    const std::string found = refusal_of(directory.path(), 0, ours, std::chrono::seconds(1));
    visitor.join();

    EXPECT_EQ(found,
              "world differs: rank 0 has '" + std::to_string(ours) + "', rank " +
                  std::to_string(rank) + " has '" + std::to_string(theirs) + "'");
    EXPECT_EQ(reported, found);
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

  EXPECT_EQ(refusal_of(directory.path(), 0, 2), "protocol differs: rank 0 has '5', rank 1 has '3'");
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

  EXPECT_EQ(refusal, "protocol differs: rank 0 has '3', rank 1 has '5'");
}

/// What `meet` throws for rank 0 of a world of two that meets in `directory`.
std::string complaint_of_rank_zero(const std::string& directory) {
  ZeroMqOptions options;
  options.world = 2;
  options.directory = directory;
  try {
    (void)meet(
        {.url = "ipc://" + directory + "/rendezvous", .join_timeout = std::chrono::milliseconds(1)},
        ZeroMqListener(options, std::make_shared<ZeroMqContext>()));
  } catch (const TransportError& error) {
    return error.what();
  }
  return {};
}

TEST(Rendezvous, UsedAddress_IsLeftAlone) {
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  const std::string path = directory.path() + "/rendezvous";
  {
    zmq::context_t context;
    zmq::socket_t other(context, zmq::socket_type::router);
    other.bind("ipc://" + path);
    EXPECT_EQ(complaint_of_rank_zero(directory.path()),
              path + " exists already: another process listens there");
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  // The network library left the file: no process listens there.
  EXPECT_TRUE(std::filesystem::exists(path));
  EXPECT_THAT(complaint_of_rank_zero(directory.path()), HasSubstr("missing rank 1"));

  std::ofstream(path) << "precious";
  EXPECT_EQ(complaint_of_rank_zero(directory.path()),
            path + " exists already, and is not a socket");
  EXPECT_EQ(std::filesystem::file_size(path), 8U);
}

TEST(Rendezvous, AnyInput_EndsWithAddressesOrAMessage) {
  const MeetingResult all =
      run_meeting_campaign(1, static_cast<int>(testing_transport::times(2000)));

  EXPECT_EQ(all.wrong, "");
  EXPECT_GT(all.met, 0);
  EXPECT_GT(all.differed, 0);
  EXPECT_GT(all.ended, 0);
}

}  // namespace
}  // namespace millrace
