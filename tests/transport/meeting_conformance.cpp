#include "transport/meeting_conformance.hpp"

#include <filesystem>
#include <thread>
#include <utility>

#include <gmock/gmock.h>

#include "millrace/core/error.hpp"
#include "millrace/transport/listener.hpp"
#include "transport/conformance.hpp"

namespace millrace::testing_transport {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MeetingConformance);

using testing::Each;
using testing::HasSubstr;

MeetingConformance::MeetingConformance() : directory_(std::filesystem::temp_directory_path()) {}

std::vector<std::string> MeetingConformance::meet_all(Gathering& all,
                                                      const std::function<HelloFields(int)>& fields,
                                                      std::chrono::milliseconds patience) {
  const int size = static_cast<int>(all.listeners.size());
  std::vector<std::string> outcomes(all.listeners.size());
  std::vector<std::jthread> ranks;
  for (int i = 0; i < size; ++i) {
    auto& listener = all.listeners[static_cast<std::size_t>(i)];
    if (!listener) continue;
    ranks.emplace_back([&, i] {
      try {
        const auto end = meet({.url = all.url, .fields = fields(i), .join_timeout = patience},
                              std::move(*listener));
        end->send(Rank{(i + 1) % size}, {}, TensorList());
        (void)end->receive(Rank{(i + size - 1) % size}, {}, soon());
        end->leave(soon());
      } catch (const Error& error) {
        outcomes[static_cast<std::size_t>(i)] = error.what();
      }
    });
  }
  ranks.clear();
  return outcomes;
}

namespace {

TEST_P(MeetingConformance, RanksThatAgreeAreConnected) {
  Gathering all = listen(4);
  EXPECT_THAT(meet_all(all, [](int) { return HelloFields{{"plan", "abc"}}; }), Each(""));
}

TEST_P(MeetingConformance, ADifferenceIsNamedOnEveryRank) {
  Gathering all = listen(3);
  const auto plan = [](int rank) { return HelloFields{{"plan", rank == 2 ? "def" : "abc"}}; };
  EXPECT_THAT(meet_all(all, plan), Each("plan differs: rank 0 has 'abc', rank 2 has 'def'"));
}

TEST_P(MeetingConformance, FieldOfOneRank_IsNamedEverywhere) {
  for (const int owner : {0, 2}) {
    Gathering all = listen(3);
    const auto fields = [owner](int rank) {
      return rank == owner ? HelloFields{{"plan", "abc"}} : HelloFields{};
    };
    EXPECT_THAT(meet_all(all, fields),
                Each(owner == 2 ? "plan differs: rank 0 has '', rank 2 has 'abc'"
                                : "plan differs: rank 0 has 'abc', rank 1 has ''"));
  }
}

TEST_P(MeetingConformance, MissingRank_IsNamedOnAll) {
  Gathering all = listen(3);
  all.listeners[1].reset();
  const auto outcomes = meet_all(
      all, [](int) { return HelloFields{}; }, std::chrono::milliseconds(700));
  EXPECT_THAT(outcomes[0], HasSubstr("missing rank 1; everyone waits for rank 1: its hello"));
  // On a busy machine either may be the first to say so.
  const auto without_time = [](const std::string& text) {
    return text.substr(0, text.rfind(", "));
  };
  EXPECT_EQ(without_time(outcomes[2]), without_time(outcomes[0]));
}

TEST_P(MeetingConformance, AWorldOfOneMeetsNobody) {
  Gathering all = listen(1);
  all.url = "nowhere";
  EXPECT_EQ(meet({.url = all.url}, std::move(*all.listeners[0]))->world(), 1);
}

TEST_P(MeetingConformance, Address_IsAnOpaqueLine) {
  Gathering all = listen(2);
  std::vector<PeerAddress> addresses;
  for (const auto& listener : all.listeners) {
    addresses.push_back(listener->address());
    EXPECT_EQ(addresses.back().text.find('\n'), std::string::npos);
  }
  EXPECT_NE(addresses[0], addresses[1]);
  const std::vector<PeerAddress> strange = {addresses[0], {"somewhere else"}};
  EXPECT_THROW((void)all.listeners[0]->open(strange), TransportError);
  EXPECT_THROW((void)all.listeners[0]->open(addresses), InvalidArgument);  // once
  EXPECT_THROW((void)all.listeners[1]->open({addresses[0]}), InvalidArgument);
}

}  // namespace

}  // namespace millrace::testing_transport
