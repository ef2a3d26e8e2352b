// Many more ranks than cores: they meet, train, and end with the weights of one process.
// MILLRACE_RANKS (the long campaign sets it) says how many.
#include <cstdlib>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "cli/launched.hpp"

namespace millrace {
namespace {

using test::Outcome;

std::string ranks() {
  const char* said = std::getenv("MILLRACE_RANKS");  // NOLINT(concurrency-mt-unsafe)
  return said == nullptr ? "48" : said;
}

/// A layer per rank.
std::string work() {
  std::string model = "mlp:64";
  for (int i = 1; i < std::stoi(ranks()); ++i) model += "-8";
  return "train --json --steps 2 --model " + model + "-10";
}

std::string weights_of(const Outcome& outcome) {
  EXPECT_EQ(outcome.code, 0) << outcome.errors;
  return outcome.code == 0 ? nlohmann::json::parse(outcome.output).at("weights_hash") : "";
}

TEST(ManyRanks, TrainOnFewCores_OverEveryBackend) {
  const std::string alone = weights_of(test::run(work() + " --ranks " + ranks()));
  for (const std::string link : {"shm", "ipc", "tcp"})
    EXPECT_EQ(
        weights_of(test::run("launch -n " + ranks() + " --endpoint " + link + " -- " + work())),
        alone)
        << link;
}

}  // namespace
}  // namespace millrace
