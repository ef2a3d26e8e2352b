// Fewer processes than places: each has several of them side by side, with the bits of one process
// and one name for all that a process was.
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "cli/launched.hpp"
#include "cli/subcommands.hpp"
#include "cli/train/side_by_side.hpp"
#include "millrace/core/error.hpp"
#include "millrace/transport/endpoint.hpp"
#include "millrace/transport/in_process.hpp"
#include "millrace/transport/private_directory.hpp"
#include "support/free_address.hpp"

namespace millrace {
namespace {

using nlohmann::json;
using test::all_gone;
using test::Command;
using test::Outcome;
using test::run;
using test::temporary;
using testing::HasSubstr;
using testing::Not;

const std::string kPlacesJob = "train --json --steps 3 --batch-size 72 ";

json json_of(const Outcome& outcome) {
  EXPECT_EQ(outcome.code, 0) << outcome.errors;
  return json::parse(outcome.output, nullptr, false);
}

TEST(Places, OfOneProcessGiveTheBitsOfOneEach) {
  const json one = json_of(run(kPlacesJob + "-p 1 -m 8 --accumulate-order tree"));
  struct Case {
    std::string launch, work;
    int processes, places;
  };
  for (const Case& launched : std::vector<Case>{
           {"-n 2", "-d 2 -p 2 -m 4 --schedule zb-h1", 2, 2},
           {"-n 1 --endpoint ipc", "-d 2 -p 2 -m 4", 1, 4},
           {"-n 2 --endpoint ipc", "-d 4 -m 2 --shard-optimizer", 2, 2},
           {"-n 2 --endpoint tcp", "-d 1 -p 4 -m 8 --schedule zb-v --accumulate-order tree", 2, 2},
           {"-n 3 --endpoint mixed --insecure", "-d 2 -p 3 -m 4 --recompute", 3, 2}}) {
    const json several =
        json_of(run("launch " + launched.launch + " -- " + kPlacesJob + launched.work));
    EXPECT_EQ(several["weights_hash"], one["weights_hash"]) << launched.work;
    EXPECT_EQ(several["losses_hex"], one["losses_hex"]) << launched.work;
    EXPECT_EQ(several["processes"], launched.processes);
    EXPECT_EQ(several["places_per_process"], launched.places);
    EXPECT_EQ(several["peak_stash_bytes"]["counted"], several["peak_stash_bytes"]["predicted"]);
    EXPECT_EQ(several["peak_stash_bytes"]["counted"].size(), several["settings"]["ranks"]);
  }
}

TEST(Places, KeysFromFolder_EveryRankJoins) {
  const PrivateDirectory place(temporary());
  const std::string keys = place.path() + "/keys";
  ASSERT_EQ(run("keys -n 4 --out " + keys).code, 0);
  const std::string rendezvous = test::free_address();
  const auto words = [&](int process, const std::string& at) {
    return "worker --rank " + std::to_string(process) + " --world 2 --rendezvous " + rendezvous +
           " --join-timeout 20 --keys " + at + " -- " + kPlacesJob + "-p 4";
  };
  EXPECT_THAT(run(words(0, keys + "/keys-0")).errors,
              HasSubstr("/keys-0: a process with 2 places has as many files of keys; give the "
                        "folder of all\n"));
  Command other(words(1, keys));
  const Outcome first = run(words(0, keys));
  const Outcome second = other.end();
  EXPECT_EQ(json_of(first)["weights_hash"], json_of(run(kPlacesJob + "-p 1"))["weights_hash"]);
  EXPECT_EQ(second.code, 0);
  for (const char* said : {"rank 3 of 4: stage 3, process ", "rank 2: done", "rank 3: done"})
    EXPECT_THAT(second.errors, HasSubstr(said));
}

TEST(Places, AKilledProcessIsCalledByAllThatItWas) {
  Command command("launch -n 2 -- train --json --epochs 100000 --batch-size 64 -d 2 -p 2 -m 4");
  const auto processes = command.workers(2);
  ASSERT_EQ(processes.size(), 2U);
  command.await_training();
  ::kill(processes[1], SIGKILL);
  const Outcome outcome = command.end();

  EXPECT_EQ(outcome.code, 69) << outcome.errors;
  EXPECT_THAT(outcome.errors,
              HasSubstr("millrace launch: the process of ranks 2 to 3 was ended by signal 9"));
  EXPECT_THAT(outcome.errors, HasSubstr("lost rank "));
  EXPECT_TRUE(all_gone(processes));
}

TEST(Places, AllEndAlikeWhereTrainingDiverges) {
  const Outcome outcome = run(
      "launch -n 2 -- train --model mlp:64-24-20-16-10 -d 2 -p 2 -m 2 --batch-size 64 --steps 60 "
      "--optimizer sgd --lr 1e30 --lr-schedule constant --warmup 0 --max-skipped 5");

  EXPECT_EQ(outcome.code, 1) << outcome.errors;
  EXPECT_THAT(outcome.errors, HasSubstr("training diverged: the gradient was not finite in 5"));
  EXPECT_THAT(outcome.errors, Not(HasSubstr("lost")));
}

TEST(Places, AProcessThatFindsADifferenceEndsWithIt) {
  const PrivateDirectory place(temporary());
  const std::string work = "train --steps 1 -p 4 --seed ";
  Command other(test::worker(place, 1, 2, work + "2"));
  const Outcome mine = run(test::worker(place, 0, 2, work + "1"));

  EXPECT_EQ(mine.code, 78);
  EXPECT_THAT(mine.errors, HasSubstr("seed differs: rank 0 has '1', rank "));
  EXPECT_EQ(other.end().code, 78);
}

TEST(Places, AreAsManyInEveryProcess) {
  EXPECT_THAT(
      run("launch -n 3 -- train -d 2 -p 2").errors,
      HasSubstr("-p 2 x -d 2: 3 processes for 4 places; 1, 2 or 4 would have as many each"));
  EXPECT_THAT(run("launch -n 2 -- train -p 1").errors,
              HasSubstr("-p 1: 2 processes for 1 place; 1 would have as many each"));
  EXPECT_THAT(run("worker --rank 0 --world 1 -- train -p 2").errors,
              HasSubstr("meeting place not set: pass --rendezvous"));
}

/// What side_by_side throws where two places throw these.
template <class One, class Other>
std::string told_of(const One& one, const Other& other) {
  try {
    cli::side_by_side(3, [&](int place) {
      if (place == 0) throw one;
      if (place == 2) throw other;
    });
  } catch (const std::exception& error) {
    return error.what();
  } catch (const cli::ExitCode& end) {
    return "exit code " + std::to_string(end.code);
  }
  return "nothing";
}

TEST(SideBySide, TwoFailures_ThrowsTheCause) {
  const Error cause("the floor gave way");
  const PeerLost lost("rank 0 was lost");
  const PeerHangs hangs("rank 0 hangs");
  const Cancelled cancelled("rank 0 gave up");
  for (int round = 0; round < 20; ++round) {  // whoever comes first
    EXPECT_EQ(told_of(cause, lost), "the floor gave way");
    EXPECT_EQ(told_of(lost, cause), "the floor gave way");
    EXPECT_EQ(told_of(hangs, cause), "the floor gave way");
    EXPECT_EQ(told_of(cancelled, cause), "the floor gave way");
    EXPECT_EQ(told_of(cli::ExitCode{143}, lost), "exit code 143");
    EXPECT_EQ(told_of(lost, cli::ExitCode{143}), "exit code 143");
    EXPECT_EQ(told_of(lost, PeerLost(lost)), "rank 0 was lost");
  }
  int sum = 0;
  cli::side_by_side(1, [&](int place) { sum += place + 5; });
  EXPECT_EQ(sum, 5);
}

TEST(SideBySide, FailingRank_EndsItsProcess) {
  InProcessHub hub(2);
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  endpoints.push_back(hub.endpoint(Rank{0}));
  endpoints.push_back(hub.endpoint(Rank{1}));
  const cli::PlaceWork work = [](Endpoint& endpoint, ProcessGroup& group) {
    if (endpoint.rank() == Rank{1}) throw Error("the floor gave way");
    group.barrier(Label::Data);
  };
  const auto both = [&](int place) {
    Endpoint& endpoint = *endpoints[static_cast<std::size_t>(place)];
    ProcessGroup group(endpoint);
    cli::work_and_leave(endpoint, group, work, true);
  };
  EXPECT_THAT([&] { cli::side_by_side(2, both); },
              testing::ThrowsMessage<Error>("the floor gave way"));
}

}  // namespace
}  // namespace millrace
