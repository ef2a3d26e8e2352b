// millrace worker: one rank of a job. Started by launch, or by an engine on any machine.
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <unistd.h>
#include <utility>
#include <vector>

#include "cli/ranks/core_dumps.hpp"
#include "cli/ranks/descriptors.hpp"
#include "cli/ranks/environment.hpp"
#include "cli/ranks/exit_report.hpp"
#include "cli/ranks/link_flags.hpp"
#include "cli/ranks/rank_work.hpp"
#include "cli/standard_streams.hpp"
#include "cli/verbs.hpp"
#include "cli/vocabulary.hpp"
#include "millrace/core/error.hpp"
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
LaunchConfig place_of(WorkerFlags flags) {
  const Variables variables = environment();
  if (variables.contains("MILLRACE_LAUNCH")) return launch_config(variables);
  Variables known = variables;
  if (!flags.rendezvous.empty()) known["MILLRACE_RENDEZVOUS"] = flags.rendezvous;
  flags.link.link = chosen_endpoint(flags.link.link, known);
  const Identity identity = identity_of(flags, variables);
  check(flags.link);
  LaunchConfig place = place_of(flags.link);
  place.member = {.rank = Rank{*identity.rank}, .world = *identity.world, .job = flags.job};
  place.rendezvous = identity.rendezvous;
  place.keys = flags.keys;
  return place;
}

void warn(const LaunchConfig& place) {
  if (place.insecure && speaks_tcp(place.endpoint))
    std::cerr << "millrace: tcp without keys: every process that can connect to "
              << (place.interface == "auto" ? "this machine" : place.interface)
              << " can read and change this training\n";
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

using Join = std::function<JoinedRank(const LaunchConfig&, const JoinOptions&)>;

/// One of the ranks that `process` is, of `places` that every process has.
LaunchConfig place_in(const LaunchConfig& process, int places, int number) {
  LaunchConfig place = process;
  place.member.rank = Rank{process.member.rank.value * places + number};
  place.member.world = process.member.world * places;
  place.places = places;
  return place;
}

/// Where every rank needs what a process has once.
void check_places(const LaunchConfig& process, int places) {
  if (places == 1 || process.endpoint == "mpi") return;
  require(process.keys_descriptor < 0 && !std::filesystem::is_regular_file(process.keys),
          flag("keys") + " " + process.keys + ": a process with " + std::to_string(places) +
              " places has as many files of keys; give the folder of all");
  require(!process.rendezvous.empty(),
          "meeting place not set: pass --rendezvous tcp://host:port, or ipc://path");
}

/// All ranks that this process is, met with all others.
std::vector<std::unique_ptr<JoinedRank>> joined_at(const LaunchConfig& process,
                                                   const RankWork& work,
                                                   const Join& join_others) {
  check_places(process, work.places);
  begin_ranks(process);
  std::vector<std::unique_ptr<JoinedRank>> joined(static_cast<std::size_t>(work.places));
  side_by_side(work.places, [&](int number) {
    const LaunchConfig place = place_in(process, work.places, number);
    JoinOptions options = {.fields = work.fields, .depths = work.depths};
    if (number == 0) options.progress = note_of_meeting(place.member.world);
    joined[static_cast<std::size_t>(number)] =
        std::make_unique<JoinedRank>(join_others(place, options));
  });
  return joined;
}

void run(const LaunchConfig& process,
         const std::vector<std::string>& command,
         const Join& join_others) {
  warn(process);
  open_as_many_files_as_allowed();
  const auto& [self, processes, job, epoch] = process.member;
  const RankWork work = rank_work(command, {self.value, processes}, process.join_timeout);
  const auto joined = joined_at(process, work, join_others);
  std::vector<const Endpoint*> endpoints;
  for (const auto& rank : joined) {
    if (!rank->connections().empty())
      UnwaitingWriter(STDERR_FILENO).write(rank->connections() + "\n");
    if (process.directory.empty()) endpoints.push_back(&rank->endpoint());
  }
  const ExitReport exit_report(endpoints);
  side_by_side(work.places, [&](int number) {
    JoinedRank& rank = *joined[static_cast<std::size_t>(number)];
    work_and_leave(rank.endpoint(), rank.group(), work.run, work.places > 1);
  });
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
                   const JobProcess& process,
                   std::chrono::milliseconds patience) {
  const bool trains = takes_train(words);
  return trains ? train_work(words, process, patience) : doctor_work(words, process.processes);
}

int check_work(std::vector<std::string> words, int processes) {
  const bool trains = takes_train(words);
  return trains ? check_train(words, processes) : doctor_work(words, processes).places;
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
  verb->callback([flags] { run(place_of(*flags), flags->command, &join); });
}

bool train_as_rank(const std::vector<std::string>& words) {
  if (find_identity({}, environment()).world.value_or(1) == 1) return false;
  run(own_launch_config(), words, &join_launch_at);
  return true;
}

}  // namespace millrace::cli
