// millrace worker: one rank of a job. Started by launch, or by an engine on any machine.
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <unistd.h>
#include <utility>

#include "cli/ranks/core_dumps.hpp"
#include "cli/ranks/descriptors.hpp"
#include "cli/ranks/environment.hpp"
#include "cli/ranks/last_words.hpp"
#include "cli/ranks/link_flags.hpp"
#include "cli/ranks/rank_work.hpp"
#include "cli/standard_streams.hpp"
#include "cli/verbs.hpp"
#include "millrace/core/error.hpp"
#include "millrace/training/trainer.hpp"
#include "millrace/transport/environment.hpp"
#include "millrace/transport/launch.hpp"

namespace millrace::cli {

namespace {

struct WorkerFlags {
  std::optional<int> rank, world;
  std::string rendezvous, keys;
  LinkFlags link = {.link = "auto"};
  std::uint64_t job = 0;
  std::vector<std::string> command;
};

Identity identity_of(const WorkerFlags& flags, const Variables& variables) {
  Identity identity = find_identity(
      {.rank = flags.rank, .world = flags.world, .rendezvous = flags.rendezvous}, variables);
  require(identity.rank.has_value(),
          "rank not set: pass --rank or MILLRACE_RANK, or start the worker by an engine");
  require(identity.world.has_value(), "number of ranks not set: pass --world or MILLRACE_WORLD");
  require(!identity.rendezvous.empty() || *identity.world == 1 || flags.link.link == "mpi",
          "meeting place not set: pass --rendezvous tcp://host:port");
  return identity;
}

/// By the launcher that started this process; else by flags and engines.
LaunchPlace place_of(WorkerFlags flags) {
  const Variables variables = environment();
  if (variables.contains("MILLRACE_LAUNCH")) return launch_place(variables);
  Variables known = variables;
  if (!flags.rendezvous.empty()) known["MILLRACE_RENDEZVOUS"] = flags.rendezvous;
  flags.link.link = chosen_endpoint(flags.link.link, known);
  const Identity identity = identity_of(flags, variables);
  check(flags.link);
  LaunchPlace place = place_of(flags.link);
  place.member = {.rank = Rank{*identity.rank}, .world = *identity.world, .job = flags.job};
  place.rendezvous = identity.rendezvous;
  place.keys = flags.keys;
  return place;
}

void warn(const LaunchPlace& place) {
  if (place.insecure && speaks_tcp(place.endpoint))
    std::cerr << "millrace: --insecure: whoever reaches "
              << place.interface << " can read and change this training\n";
  if (place.core_dumps && !place.keys.empty()) warn_of_dumps();
}

/// A line a second, as long as ranks are missing and more of them come; for who reads it.
std::function<void(int)> note_of_meeting(int world) {
  const auto writer = std::make_shared<UnwaitingWriter>(STDERR_FILENO);
  return [world, writer, last = 0](int came) mutable {
    if (std::exchange(last, came) == came) return;
    writer->write("millrace: " + std::to_string(came) + " of " + std::to_string(world) +
                  " ranks have met\n");
  };
}

/// The others find the same difference, once they have what this rank has said.
void leave_disagreeing(JoinedRank& rank) {
  try {
    rank.leave(std::chrono::seconds(5));
  } catch (const TransportError&) {
    return;  // they have left, or found another fault: the difference is told here all the same
  }
}

void run(const LaunchPlace& place,
         const std::vector<std::string>& command,
         const std::function<JoinedRank(const JoinOptions&)>& join_others) {
  warn(place);
  open_as_many_files_as_allowed();
  const auto& [self, world, job, epoch] = place.member;
  const RankWork work = rank_work(command, self, world, place.patience);
  JoinedRank rank = join_others(
      {.fields = work.fields, .depths = work.depths, .progress = note_of_meeting(world)});
  if (!rank.connections().empty()) UnwaitingWriter(STDERR_FILENO).write(rank.connections() + "\n");
  const LastWords last_words(place.directory.empty() ? &rank.endpoint() : nullptr);
  try {
    work.run(rank.endpoint(), rank.group());
  } catch (const Diverged&) {
    rank.leave();  // every rank ends so, after the same step: nobody is lost
    throw;
  } catch (const ExitCode&) {
    rank.leave();  // all were asked to stop, and did so after the same step
    throw;
  } catch (const Mismatch&) {
    leave_disagreeing(rank);
    throw;
  }
  rank.leave();
}

/// Takes the name of the work off the words.
bool takes_train(std::vector<std::string>& words) {
  const std::string name = words.empty() ? std::string() : words.front();
  require(name == "train" || name == "doctor",
          (name.empty() ? std::string() : "'" + name + "': ") +
              "ranks train or doctor; type -- train and its options last");
  words.erase(words.begin());
  return name == "train";
}

}  // namespace

RankWork rank_work(std::vector<std::string> words,
                   Rank rank,
                   int world,
                   std::chrono::milliseconds patience) {
  const bool trains = takes_train(words);
  return trains ? train_work(words, rank, world, patience) : doctor_work(words, world);
}

void check_work(std::vector<std::string> words, int world) {
  const bool trains = takes_train(words);
  trains ? check_train(words, world) : static_cast<void>(doctor_work(words, world));
}

void add_worker(CLI::App& app) {
  CLI::App* verb = app.add_subcommand(
      "worker", "One rank of a job, started by an engine: worker [options] -- train ...");
  auto flags = std::make_shared<WorkerFlags>();
  verb->add_option("--rank", flags->rank, "This process's rank; else the engine's variables");
  verb->add_option("--world", flags->world, "Number of processes; else the engine's variables");
  verb->add_option(
      "--rendezvous", flags->rendezvous, "Where rank 0 listens: tcp://host:port, or ipc://path");
  verb->add_option(
      "--keys", flags->keys, "Folder that millrace keys made, or this rank's file of it");
  verb->add_option("--job", flags->job, "Number of the job; equal on all ranks")
      ->capture_default_str();
  add_link_flags(*verb, flags->link);
  verb->add_option("command", flags->command, "-- train or doctor, and its options")->required();
  verb->callback([flags] {
    const LaunchPlace place = place_of(*flags);
    run(place, flags->command, [&](const JoinOptions& options) { return join(place, options); });
  });
}

bool train_as_rank(const std::vector<std::string>& words) {
  if (find_identity({}, environment()).world.value_or(1) == 1) return false;
  run(own_launch_place(), words, join_launch);
  return true;
}

}  // namespace millrace::cli
