// Under an engine that has started several processes, `millrace train` is one rank: the variables
// of engines are played here, those of Kubernetes out of the manifest in examples/engines.
#include <filesystem>
#include <fstream>
#include <memory>
#include <regex>
#include <sstream>

#include <gmock/gmock.h>

#include "cli/launched.hpp"
#include "millrace/transport/private_directory.hpp"
#include "support/free_address.hpp"

namespace millrace {
namespace {

using test::Command;
using test::free_address;
using test::Outcome;
using test::run;
using test::temporary;
using testing::HasSubstr;

const std::string kManifest = MILLRACE_SOURCE_DIR "/examples/engines/kubernetes.yaml";

std::string weights_in(const Outcome& outcome) {
  const std::size_t at = outcome.output.find("weights ");
  EXPECT_EQ(outcome.code, 0) << outcome.errors;
  return at == std::string::npos ? outcome.errors : outcome.output.substr(at, 40);
}

/// The same command in processes of different variables; by rank.
std::vector<Outcome> outcomes_of(const std::string& command,
                                 const std::vector<std::string>& variables) {
  std::vector<std::unique_ptr<Command>> ranks;
  for (const std::string& of_rank : variables)
    ranks.push_back(std::make_unique<Command>(command, "export " + of_rank + "; "));
  std::vector<Outcome> outcomes;
  for (const auto& rank : ranks) outcomes.push_back(rank->end());
  return outcomes;
}

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += with.size())
    text.replace(at, what.size(), with);
  return text;
}

/// "NAME=value ..." of the container's variables.
std::string variables_in(const std::string& manifest) {
  static const std::regex kVariable(R"re(- name: (MILLRACE_\w+)\s+value: "([^"]*)")re");
  std::string text;
  for (std::sregex_iterator at(manifest.begin(), manifest.end(), kVariable), end; at != end; ++at)
    text += (*at)[1].str() + "=" + (*at)[2].str() + " ";
  return text;
}

std::string command_in(const std::string& manifest) {
  static const std::regex kCommand(R"re(command: \[millrace, ([^\]]*)\])re");
  std::smatch found;
  EXPECT_TRUE(std::regex_search(manifest, found, kCommand));
  return replaced(replaced(found[1].str(), ",", ""), "\"", "");
}

TEST(TrainUnderAnEngine, TorchrunVariables_SetTheRank) {
  const std::string train = "train --steps 6";
  const std::string address = free_address();
  const std::size_t colon = address.rfind(':');
  const std::string common =
      "WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=" + address.substr(colon + 1) +
      " MILLRACE_INSECURE=1 RANK=";
  const auto ranks = outcomes_of(train, {common + "0", common + "1", common + "2"});

  EXPECT_EQ(weights_in(ranks[0]), weights_in(run(train)));
  EXPECT_THAT(ranks[0].output, HasSubstr("3 processes"));
  for (int i : {1, 2}) {
    const Outcome& rank = ranks[static_cast<std::size_t>(i)];
    EXPECT_EQ(rank.code, 0) << rank.errors;
    EXPECT_THAT(rank.errors, HasSubstr("rank " + std::to_string(i) + " of 3"));
  }
}

TEST(TrainUnderAnEngine, Torchrun_WarnsOfReadableTraffic) {
  const std::string address = free_address();
  const std::string common =
      "SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_STEP_ID=0 SLURM_JOB_ID=7 "
      "TORCHELASTIC_RUN_ID=none WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "
      "MILLRACE_INSECURE=1 MASTER_PORT=" +
      address.substr(address.rfind(':') + 1);
  const std::string train = "train --steps 2";
  const auto ranks =
      outcomes_of(train, {common + " RANK=0 LOCAL_RANK=0", common + " RANK=1 LOCAL_RANK=1"});

  EXPECT_EQ(weights_in(ranks[0]), weights_in(run(train)));
  EXPECT_EQ(ranks[1].code, 0) << ranks[1].errors;
  EXPECT_THAT(ranks[1].errors,
              HasSubstr("millrace: tcp without keys: every process that can connect to this "
                        "machine can read and change this training\n"));
}

TEST(TrainUnderAnEngine, IndexedJobManifest_SetsTheRank) {
  const PrivateDirectory place(temporary());
  ASSERT_EQ(run("keys -n 4 --out " + place.path() + "/keys").code, 0);
  std::string manifest = test::text_of(kManifest);
  manifest = replaced(manifest, "tcp://train-0.train:29400", free_address());
  manifest = replaced(manifest, "\"/keys\"", "\"" + place.path() + "/keys\"");
  manifest = replaced(manifest, "/checkpoints", place.path() + "/checkpoints");
  std::vector<std::string> variables;
  for (const char* index : {"0", "1", "2", "3"})
    variables.push_back(variables_in(manifest) + "JOB_COMPLETION_INDEX=" + index);
  const auto ranks = outcomes_of(command_in(manifest), variables);

  for (const Outcome& rank : ranks) EXPECT_EQ(rank.code, 0) << rank.errors;
  EXPECT_EQ(weights_in(ranks[0]), weights_in(run("train --model mlp:64-96-64-48-10 --steps 12")));
  EXPECT_THAT(ranks[0].output, HasSubstr("4 processes"));
  EXPECT_THAT(manifest, HasSubstr("completions: 4"));
}

TEST(TrainUnderAnEngine, MissingValue_NamesItsVariable) {
  const auto refused = [](const std::string& variables) {
    return outcomes_of("train --steps 1", {variables})[0];
  };
  Outcome outcome = refused("RANK=1 WORLD_SIZE=2");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.errors, HasSubstr("MILLRACE_RENDEZVOUS is not set, but there are 2 ranks"));
  outcome = refused("RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=9");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.errors, HasSubstr("MILLRACE_ENDPOINT tcp: give MILLRACE_KEYS FILE"));
  outcome = refused("OMPI_COMM_WORLD_RANK=1 RANK=0 WORLD_SIZE=2");
  EXPECT_EQ(outcome.code, 78);
  EXPECT_THAT(outcome.errors, HasSubstr("the rank is 1 by OMPI_COMM_WORLD_RANK, but 0 by RANK"));
}

TEST(TrainUnderAnEngine, OneProcess_IsAlone) {
  const Outcome one = outcomes_of("train --steps 3", {"RANK=0 WORLD_SIZE=1"})[0];
  const Outcome batch = outcomes_of("train --steps 3",
                                    {"SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=7 "
                                     "SLURM_STEP_ID=4294967291 SLURM_JOB_NODELIST=n[1-2]"})[0];
  EXPECT_EQ(weights_in(one), weights_in(run("train --steps 3")));
  EXPECT_EQ(weights_in(batch), weights_in(one));
}

}  // namespace
}  // namespace millrace
