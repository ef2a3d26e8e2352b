// What ranks compare of PyTorch when they meet: another version or another BLAS is refused by name.
#include "millrace/torch/fields.hpp"

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/transport/launch.hpp"
#include "millrace/transport/private_directory.hpp"

namespace millrace::testing_torch {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(TorchFields, SayVersionKernelsAndWhatMultiplies) {
  std::vector<std::string> names, values;
  for (const auto& [name, value] : torch_fields()) {
    names.push_back(name);
    values.push_back(value);
  }
  EXPECT_THAT(names,
              ElementsAre("PyTorch", "PyTorch's kernels", "BLAS of PyTorch", "oneDNN of PyTorch"));
  EXPECT_THAT(values,
              Each(testing::Not(testing::AnyOf("", HasSubstr("unknown"), HasSubstr("\n")))));
  EXPECT_THAT(values.at(0), testing::StartsWith("1."));
}

/// What both ranks of a world of two say when the last one has these fields.
std::vector<std::string> outcome_of_joining(const HelloFields& last) {
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  std::vector<std::string> outcomes(2);
  std::vector<std::jthread> ranks;
  for (int i = 0; i < 2; ++i)
    ranks.emplace_back([&, i] {
      const LaunchConfig place{.member = {.rank = Rank{i}, .world = 2},
                               .rendezvous = "ipc://" + directory.path() + "/meet",
                               .backend = Backend::Ipc,
                               .directory = directory.path()};
      try {
        JoinedRank rank = join(place, {.fields = i == 1 ? last : torch_fields()});
        rank.leave();
      } catch (const Mismatch& error) {
        outcomes[static_cast<std::size_t>(i)] = error.what();
      }
    });
  ranks.clear();
  return outcomes;
}

TEST(TorchFields, LetEqualRanksMeetOverZeroMq) {
  EXPECT_THAT(outcome_of_joining(torch_fields()), Each(""));
}

TEST(TorchFields, RefuseARankWithAnotherOneOverZeroMq) {
  for (std::size_t i = 0; i < torch_fields().size(); ++i) {
    HelloFields other = torch_fields();
    other[i].second = "another";
    EXPECT_THAT(outcome_of_joining(other),
                Each(testing::AllOf(HasSubstr(other[i].first + " differs"),
                                    HasSubstr("rank 1 has 'another'"))));
  }
}

}  // namespace
}  // namespace millrace::testing_torch
