// Identity and rendezvous: who says what, and that every difference is named on every rank.
#include "millrace/transport/rendezvous.hpp"

#include <filesystem>
#include <thread>

#include <gmock/gmock.h>

#include "millrace/core/error.hpp"
#include "millrace/transport/environment.hpp"
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
      {{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"}},
      {{"RANK", "2"}, {"WORLD_SIZE", "4"}},
      {{"JOB_COMPLETION_INDEX", "2"}, {"MILLRACE_WORLD", "4"}}};
  for (const Variables& variables : engines) {
    const Identity identity = find_identity({}, variables);
    EXPECT_EQ(identity.rank, 2) << variables.begin()->first;
    EXPECT_EQ(identity.world, 4) << variables.begin()->first;
  }
}

TEST(Environment, TwoSourcesThatAgreeAreFineAndTwoThatDisagreeAreRefused) {
  Variables variables = {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"SLURM_PROCID", "1"}};
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
    EXPECT_THAT(error.what(), HasSubstr("missing rank 1 rank 2"));
  }
}

}  // namespace
}  // namespace millrace
