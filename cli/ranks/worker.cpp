// millrace worker: one rank of a job. Started by launch, or by an engine on any machine.
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <unistd.h>
#include <utility>

#include "cli/ranks/backends.hpp"
#include "cli/ranks/descriptors.hpp"
#include "cli/ranks/environment.hpp"
#include "cli/ranks/link_flags.hpp"
#include "cli/ranks/rank_work.hpp"
#include "cli/standard_streams.hpp"
#include "cli/verbs.hpp"
#include "millrace/core/error.hpp"
#include "millrace/stages/compiled.hpp"
#include "millrace/training/trainer.hpp"
#include "millrace/transport/environment.hpp"
#include "millrace/transport/process_group.hpp"

namespace millrace::cli {

namespace {

struct WorkerFlags {
  std::optional<int> rank, world;
  std::string rendezvous, keys, obituary;
  LinkFlags link = {.link = "tcp"};
  std::uint64_t job = 0;
  std::vector<std::string> command;
};

std::string dispatch_level() {
  if (__builtin_cpu_supports("avx512f")) return "avx512";
  return __builtin_cpu_supports("avx2") ? "avx2" : "baseline";
}

Identity identity_of(const WorkerFlags& flags) {
  Identity identity = find_identity(
      {.rank = flags.rank, .world = flags.world, .rendezvous = flags.rendezvous}, environment());
  require(identity.rank.has_value(),
          "rank not set: pass --rank or MILLRACE_RANK, or start the worker by an engine");
  require(identity.world.has_value(), "number of ranks not set: pass --world or MILLRACE_WORLD");
  require(!identity.rendezvous.empty() || *identity.world == 1,
          "meeting place not set: pass --rendezvous tcp://host:port");
  return identity;
}

RankPlace place_of(const WorkerFlags& flags, const Identity& identity, const RankWork& work) {
  check(flags.link);
  return {.member = {.rank = Rank{*identity.rank}, .world = *identity.world, .job = flags.job},
          .rendezvous = identity.rendezvous,
          .keys = flags.keys,
          .depths = work.depths};
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
void leave_disagreeing(Endpoint& endpoint) {
  try {
    endpoint.goodbye(std::chrono::steady_clock::now() + std::chrono::seconds(5));
  } catch (const TransportError&) {
    return;  // they have left, or found another fault: the difference is told here all the same
  }
}

void run(const WorkerFlags& flags) {
  const Identity identity = identity_of(flags);
  if (flags.link.insecure && flags.link.link == "tcp")
    std::cerr << "millrace: --insecure: whoever reaches "
              << flags.link.interface << " can read and change this training\n";
  open_as_many_files_as_allowed();
  const auto patience = milliseconds(flags.link.patience);
  const RankWork work = rank_work(flags.command, Rank{*identity.rank}, *identity.world, patience);
  const auto listener =
      backend_of(flags.link).listener(flags.link, place_of(flags, identity, work));
  const auto endpoint = meet({.url = identity.rendezvous,
                              .fields = work.fields,
                              .patience = patience,
                              .silence = milliseconds(flags.link.silence),
                              .progress = note_of_meeting(*identity.world),
                              .obituary = flags.obituary},
                             std::move(*listener));
  ProcessGroup group(*endpoint);
  const auto farewell = [&] {
    endpoint->goodbye(std::chrono::steady_clock::now() + std::chrono::seconds(30));
  };
  try {
    work.run(*endpoint, group);
  } catch (const Diverged&) {
    farewell();  // every rank ends so, after the same step: nobody is lost
    throw;
  } catch (const ExitCode&) {
    farewell();  // all were asked to stop, and did so after the same step
    throw;
  } catch (const Mismatch&) {
    leave_disagreeing(*endpoint);
    throw;
  }
  farewell();
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

HelloFields build_fields() {
  return {{"library version", MILLRACE_VERSION},
          {"processor", dispatch_level()},
          {"compiled code", compiled_code()},
          {"products", product_libraries()}};
}

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
  verb->add_option("--obituary",
                   flags->obituary,
                   "File that appears when a rank ended before all had met, and says which");
  add_link_flags(*verb, flags->link);
  verb->add_option("command", flags->command, "-- train or doctor, and its options")->required();
  verb->callback([flags] { run(*flags); });
}

}  // namespace millrace::cli
