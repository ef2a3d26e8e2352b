// Models of PyTorch's layers in a process per rank: launched, joined, and with the bits of plain
// autograd. The ranks of a test are this program again, each of which trains its part of every case
// of the cover and writes what it has of it beside its log.
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/launched.hpp"
#include "millrace/training/ranks.hpp"
#include "millrace/transport/launch.hpp"
#include "torch/matrix_runs.hpp"

namespace millrace::testing_torch {
namespace {

bool is_launched() {
  return std::getenv("MILLRACE_RANK") != nullptr;  // NOLINT(concurrency-mt-unsafe)
}

/// A rank's: a line for each digest, behind the number of its case.
void train_all(const std::vector<test::Choice>& choices) {
  JoinedRank rank = join_launch({.fields = build_fields()});
  std::ofstream file(rank.log_directory() + "/bits-" + std::to_string(rank.rank().value));
  for (std::size_t i = 0; i < choices.size(); ++i)
    for (const auto& [name, digest] : run(torch_case_of(choices[i]), rank.endpoint(), rank.group()))
      file << i << ' ' << digest << ' ' << name << '\n';
  rank.leave();
}

/// What all ranks wrote, by case; copies of a model have the same on several ranks.
std::map<std::size_t, Bits> read_bits(const std::string& folder, int ranks) {
  std::map<std::size_t, Bits> bits;
  for (int rank = 0; rank < ranks; ++rank) {
    std::ifstream file(folder + "/bits-" + std::to_string(rank));
    std::size_t number = 0;
    for (std::string digest, name; file >> number >> digest && std::getline(file >> std::ws, name);)
      if (const auto [at, is_new] = bits[number].emplace(name, digest);
          !is_new && at->second != digest)
        at->second = "copies differ";
  }
  return bits;
}

class TorchProcesses : public testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(TorchProcesses, HaveTheBitsOfPlainAutograd) {
  const auto& [place, ranks] = GetParam();
  const std::vector<test::Choice> choices = torch_choices_of(place, ranks);
  if (is_launched()) return train_all(choices);

  const testing::TestInfo& self = *testing::UnitTest::GetInstance()->current_test_info();
  test::Command command("launch -n " + std::to_string(ranks) + " --endpoint " + place +
                            " --log-dir LOGS -- " MILLRACE_BINARY_DIR
                            "/tests/test_torch --gtest_filter=" +
                            self.test_suite_name() + "." + self.name(),
                        "unset GTEST_TOTAL_SHARDS GTEST_SHARD_INDEX; ");
  command.await_end();
  std::map<std::size_t, Bits> bits = read_bits(command.logs(), ranks);
  const test::Outcome outcome = command.end();
  ASSERT_EQ(outcome.code, 0) << outcome.output << outcome.errors;
  EXPECT_FALSE(choices.empty());
  for (std::size_t i = 0; i < choices.size(); ++i) {
    SCOPED_TRACE(torch_matrix().text(choices[i]));
    EXPECT_THAT(differences(bits[i], wanted(torch_case_of(choices[i]))), testing::IsEmpty());
  }
}

INSTANTIATE_TEST_SUITE_P(ZeroMq,
                         TorchProcesses,
                         testing::Combine(testing::Values("ipc", "tcp"), testing::Values(2, 3, 4)),
                         [](const auto& tested) {
                           return std::get<0>(tested.param) + "_of_" +
                                  std::to_string(std::get<1>(tested.param));
                         });

}  // namespace
}  // namespace millrace::testing_torch
