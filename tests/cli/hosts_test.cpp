// Workers that no launcher starts, as on several machines: keys out of files, a meeting over tcp,
// and the measurements between ranks.
#include <filesystem>
#include <fstream>
#include <memory>
#include <sys/stat.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

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
using testing::StartsWith;

/// Every rank as its own command, as engines on several machines would start them; by rank.
std::vector<Outcome> outcomes_of_workers(int world,
                                         const std::string& keys,
                                         const std::string& work) {
  const std::string common = " --world " + std::to_string(world) + " --rendezvous " +
                             free_address() + " --join-timeout 20 ";
  std::vector<std::unique_ptr<Command>> commands;
  for (int i = 0; i < world; ++i) {
    const std::string rank = std::to_string(i);
    // A rank's own file and the whole folder are both understood.
    commands.push_back(std::make_unique<Command>("worker --rank " + rank + common + "--keys " +
                                                 keys + (i == 0 ? "" : "/keys-" + rank) + " -- " +
                                                 work));
  }
  std::vector<Outcome> outcomes;
  for (const auto& command : commands) outcomes.push_back(command->end());
  return outcomes;
}

TEST(Hosts, WorkersWithKeyFiles_TrainToTheSameBits) {
  const PrivateDirectory place(temporary());
  const Outcome made = run("keys -n 3 --out " + place.path() + "/keys");
  ASSERT_EQ(made.code, 0) << made.errors;
  const std::string job = "train --json --steps 3 --batch-size 64";

  const auto outcomes = outcomes_of_workers(3, place.path() + "/keys", job);

  for (const Outcome& outcome : outcomes) ASSERT_EQ(outcome.code, 0) << outcome.errors;
  EXPECT_EQ(nlohmann::json::parse(outcomes[0].output).at("weights_hash"),
            nlohmann::json::parse(run(job).output).at("weights_hash"));
  EXPECT_EQ(outcomes[1].output + outcomes[2].output, "");
  EXPECT_THAT(outcomes[1].errors, HasSubstr("rank 1 shares memory with ranks 0, 2\n"));
}

TEST(Hosts, KeyFilesAreSecretAndNeverWrittenOver) {
  const PrivateDirectory place(temporary());
  const std::string keys = place.path() + "/keys";
  ASSERT_EQ(run("keys -n 2 --out " + keys).code, 0);
  struct stat facts {};
  ASSERT_EQ(::stat((keys + "/keys-1").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777U, 0600U);
  const std::string before = test::text_of(keys + "/keys-1");
  std::filesystem::remove(keys + "/keys-0");

  const Outcome again = run("keys -n 2 --out " + keys);

  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.errors, HasSubstr("keys-1: File exists"));
  EXPECT_EQ(test::text_of(keys + "/keys-1"), before);
  EXPECT_FALSE(std::filesystem::exists(keys + "/keys-0"));  // half a set is no use
}

TEST(Hosts, WrongKeyFile_IsRejectedBeforeListening) {
  const PrivateDirectory place(temporary());
  const std::string keys = place.path() + "/keys";
  ASSERT_EQ(run("keys -n 3 --out " + keys).code, 0);
  const auto refusal = [&](int rank, int world, const std::string& file, int code = 2) {
    const Outcome outcome =
        run("worker --rank " + std::to_string(rank) + " --world " + std::to_string(world) +
            " --rendezvous tcp://127.0.0.1:9 --keys " + keys + "/" + file + " -- train");
    EXPECT_EQ(outcome.code, code) << outcome.errors;
    return outcome.errors;
  };

  EXPECT_THAT(refusal(1, 3, "keys-0"), HasSubstr("the keys of rank 0, but this is rank 1"));
  EXPECT_THAT(refusal(1, 4, "keys-1"), HasSubstr("made for 3 ranks, but there are 4"));
  EXPECT_THAT(refusal(1, 3, "keys-7"), HasSubstr("cannot be read"));
  std::ofstream(keys + "/keys-2", std::ios::app) << "short\n";
  EXPECT_THAT(refusal(2, 3, "keys-2", 65), HasSubstr("not a file of keys"));
  std::string damaged = test::text_of(keys + "/keys-0");
  damaged[50] = '~';  // in the secret key, and no letter of one
  std::ofstream(keys + "/keys-0") << damaged;
  EXPECT_THAT(refusal(0, 3, "keys-0", 65), HasSubstr("keys-0: not a file of keys"));
  ::chmod((keys + "/keys-1").c_str(), 0640);
  EXPECT_THAT(refusal(1, 3, "keys-1"), HasSubstr("others may read this secret"));
}

TEST(Hosts, TcpWithoutKeysIsRefusedAndInsecureWarns) {
  const std::string common = "worker --rank 0 --world 1 --rendezvous tcp://127.0.0.1:9 ";
  const Outcome bare = run(common + "-- train --steps 1");
  const Outcome warned = run(common + "--insecure -- train --steps 1");

  EXPECT_EQ(bare.code, 2);
  EXPECT_THAT(bare.errors, HasSubstr("give --keys FILE (millrace keys makes them), or --insecure"));
  EXPECT_EQ(warned.code, 0) << warned.errors;
  EXPECT_THAT(warned.errors,
              HasSubstr("tcp without keys: every process that can connect to 127.0.0.1 can read"));
}

TEST(Hosts, IncompatibleFlags_AreRejected) {
  struct Case {
    const char* flags;
    const char* sentence;
  };
  for (const auto& [flags, sentence] :
       {Case{"--rank 0 --world 2 --rendezvous tcp://127.0.0.1:9 --keys k --insecure",
             "--keys and --insecure"},
        Case{"--rank 1 --rendezvous tcp://127.0.0.1:9 --insecure", "pass --world"},
        Case{"--world 2 --rendezvous tcp://127.0.0.1:9 --insecure", "pass --rank"},
        Case{"--rank 0 --world 2 --endpoint ipc --rendezvous tcp://127.0.0.1:9",
             "meet at ipc://directory/name"},
        Case{"--rank 0 --world 2 --insecure --rendezvous 127.0.0.1:9",
             "not a rendezvous: tcp://host:port"},
        Case{"--rank 0 --world 2 --insecure --rendezvous tcp://192.0.2.7:9", "(--interface)"},
        Case{"--rank 0 --world 2 --insecure --rendezvous tcp://*:4567", "on all addresses"},
        Case{"--rank 0 --world 2 --insecure --interface 0.0.0.0 --rendezvous tcp://127.0.0.1:9",
             "'0.0.0.0' would listen on all"},
        Case{"--rank 0 --world 2 --endpoint ipc --insecure --rendezvous ipc:///x/y",
             "--endpoint is ipc"}}) {
    const Outcome outcome = run(std::string("worker ") + flags + " -- train --steps 1");
    EXPECT_EQ(outcome.code, 2) << flags;
    EXPECT_THAT(outcome.errors, HasSubstr(sentence));
  }
}

TEST(Hosts, FilesOfOneNameWithOtherContentsAreRefused) {
  const PrivateDirectory meeting(temporary());
  const auto here = std::filesystem::current_path();
  std::vector<std::unique_ptr<PrivateDirectory>> machines;
  std::vector<std::unique_ptr<Command>> workers;
  for (int rank = 0; rank < 2; ++rank) {
    machines.push_back(std::make_unique<PrivateDirectory>(temporary()));
    std::filesystem::current_path(machines.back()->path());
    std::ofstream samples("samples.csv");
    for (int i = 0; i < 60; ++i) samples << i % 7 << ',' << i % 3 + rank * (i == 59) << '\n';
    samples.close();
    workers.push_back(std::make_unique<Command>(
        "worker --rank " + std::to_string(rank) + " --world 2 --endpoint ipc --rendezvous ipc://" +
        meeting.path() +
        "/rendezvous -- train --steps 2 --data csv:samples.csv --model mlp:1-4-4 --batch-size 16"));
  }
  std::filesystem::current_path(here);

  for (const auto& worker : workers) {
    const Outcome outcome = worker->end();
    EXPECT_EQ(outcome.code, 78);
    EXPECT_THAT(outcome.errors, HasSubstr("data differs: 48 training samples, 12 test samples"));
  }
}

/// From and to of every pair, having looked at what was measured.
std::vector<std::pair<int, int>> pairs_of(const Outcome& outcome) {
  EXPECT_EQ(outcome.code, 0) << outcome.errors;
  std::vector<std::pair<int, int>> pairs;
  const auto document = nlohmann::json::parse(outcome.output);
  for (const auto& pair : document.at("pairs")) {
    pairs.emplace_back(pair.at("from"), pair.at("to"));
    const double small = pair.at("round_trip_4_kib_seconds");
    const double bandwidth = pair.at("bytes_per_second");
    EXPECT_GT(small, 1e-6);  // faster than any system call would be a mistake
    EXPECT_LT(small, 5);
    EXPECT_GT(bandwidth, 1e5);
    EXPECT_LT(bandwidth, 1e12);
    EXPECT_GT(pair.at("round_trip_1_mib_seconds"), 0);
    EXPECT_NE(pair.at("from_host"), "");
  }
  return pairs;
}

TEST(Doctor, MeasuresBetweenEveryPairOfNeighbouringRanks) {
  using Pairs = std::vector<std::pair<int, int>>;
  EXPECT_EQ(pairs_of(run("doctor -n 2 --json")), (Pairs{{0, 1}}));
  EXPECT_EQ(pairs_of(run("doctor -n 4 --json")), (Pairs{{0, 1}, {1, 2}, {2, 3}, {3, 0}}));
  EXPECT_EQ(pairs_of(run("doctor -n 3 --endpoint tcp --json")), (Pairs{{0, 1}, {1, 2}, {2, 0}}));
}

TEST(Doctor, MeasuresBetweenWorkersOfSeveralMachines) {
  const PrivateDirectory place(temporary());
  ASSERT_EQ(run("keys -n 2 --out " + place.path() + "/keys").code, 0);

  const auto outcomes = outcomes_of_workers(2, place.path() + "/keys", "doctor");

  EXPECT_EQ(outcomes[0].code, 0) << outcomes[0].errors;
  EXPECT_EQ(outcomes[1].code, 0) << outcomes[1].errors;
  EXPECT_THAT(outcomes[0].output, HasSubstr("us for 1 MiB"));
  EXPECT_THAT(outcomes[0].output, HasSubstr("\n0 - 1  "));
}

TEST(Doctor, TellsWhereRankZeroCouldListen) {
  const std::string address = free_address();
  const Outcome good = run("doctor --rendezvous " + address);
  // 203.0.113.0/24 is for documentation: no machine has such an address.
  const Outcome bad = run("doctor --rendezvous tcp://203.0.113.77:4000");

  EXPECT_EQ(good.code, 0);
  EXPECT_THAT(good.output, HasSubstr("ok    " + address));
  EXPECT_THAT(good.output, HasSubstr("  rank 0 can listen there"));
  EXPECT_THAT(good.output, HasSubstr("lo 127.0.0.1"));
  EXPECT_EQ(bad.code, 1);
  EXPECT_THAT(bad.output, HasSubstr("FAIL  tcp://203.0.113.77:4000"));
}

TEST(Doctor, Json_HasTheFieldsOfTheText) {
  const Outcome words = run("doctor");
  const auto found = nlohmann::json::parse(run("doctor --json").output);

  EXPECT_THAT(
      words.output,
      StartsWith("millrace " + found.at("millrace").get<std::string>() + ", frame protocol " +
                 std::to_string(found.at("frame_protocol").get<int>()) + ", "));
  EXPECT_EQ(found.at("checks").size(), 6U);
  for (const auto& check : found.at("checks")) {
    EXPECT_TRUE(check.at("ok").get<bool>()) << check;
    EXPECT_THAT(words.output, HasSubstr("ok    " + check.at("check").get<std::string>() + "  "));
  }
  const Outcome bad = run("doctor --json --rendezvous tcp://203.0.113.77:4000");
  EXPECT_EQ(bad.code, 1);
  EXPECT_FALSE(nlohmann::json::parse(bad.output).at("checks").back().at("ok").get<bool>());
}

TEST(Doctor, RefusesWhatCannotBeMeant) {
  EXPECT_EQ(run("doctor -n 1").code, 2);
  EXPECT_EQ(run("doctor -n 2 --rendezvous tcp://127.0.0.1:9").code, 2);
  EXPECT_EQ(run("launch -n 2 -- doctor --quick").code, 2);
}

}  // namespace
}  // namespace millrace
