// millrace worker: one rank of a job. Started by launch, or by an engine on any machine.
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "cli/ranks/link_flags.hpp"
#include "cli/ranks/process.hpp"
#include "cli/ranks/rank_work.hpp"
#include "cli/signal_thread.hpp"
#include "cli/standard_streams.hpp"
#include "cli/subcommands.hpp"
#include "cli/train/stop_signals.hpp"
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
  const Variables variables = own_environment();
  if (variables.contains("MILLRACE_LAUNCH")) return launch_config(variables);
  Variables known = variables;
  if (!flags.rendezvous.empty()) known["MILLRACE_RENDEZVOUS"] = flags.rendezvous;
  flags.link.link = name_of(chosen_backend(flags.link.link, known));
  const Identity identity = identity_of(flags, variables);
  check(flags.link);
  LaunchConfig place = place_of(flags.link);
  place.member = {.rank = Rank{*identity.rank}, .world = *identity.world, .job = flags.job};
  place.rendezvous = identity.rendezvous;
  place.keys = flags.keys;
  return place;
}

void warn(const LaunchConfig& place) {
  if (place.insecure && uses_tcp(place.backend))
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
  if (places == 1 || process.backend == Backend::Mpi) return;
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

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kLook = 50ms;
/// Of the second that some launchers leave between asking and killing.
constexpr auto kStepMayTake = 500ms;

StopRequest asked;

/// What a rank writes when its launcher asks it to end while it waits for another one: launchers
/// kill soon after they have asked, and a job whose rank is stopped or gone would end without a
/// reason.
///
/// From its construction on, a SIGTERM has what the ranks of this process do printed on standard
/// error. A process that does not stop when asked (StopSignals) ends by the signal then; one that
/// does says it half a second later, if its step has not ended by then. Thread-safety: one at a
/// time. Cost: 20 looks at a number per second.
class ExitReport {
 public:
  /// Of its ranks; they must outlive this. Without any nothing is done.
  explicit ExitReport(std::vector<const Endpoint*> endpoints);
  ExitReport(const ExitReport&) = delete;
  ExitReport& operator=(const ExitReport&) = delete;
  ~ExitReport();

 private:
  void say() const;
  void watch(const std::stop_token& stop) const;

  std::vector<const Endpoint*> endpoints_;
  std::jthread thread_;
};

ExitReport::ExitReport(std::vector<const Endpoint*> endpoints) : endpoints_(std::move(endpoints)) {
  if (endpoints_.empty()) return;
  asked.forget();
  SignalThread::listen(asked, {SIGTERM});
  thread_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
}

ExitReport::~ExitReport() {
  SignalThread::stop_listening(asked);
}

void ExitReport::say() const {
  for (const Endpoint* endpoint : endpoints_)
    std::cerr << "millrace: rank " + std::to_string(endpoint->rank().value) +
                     " was asked to end; it " + endpoint->doing() + "\n"
              << std::flush;
}

void ExitReport::watch(const std::stop_token& stop) const {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  for (std::optional<Clock::time_point> since; !stop.stop_requested();) {
    never.wait_for(lock, stop, kLook, [] { return false; });
    if (asked.signal() != 0) {
      say();
      end_by(SIGTERM);
    }
    if (StopSignals::received() == 0) continue;
    if (!since) since = Clock::now();
    if (Clock::now() - *since < kStepMayTake) continue;
    say();
    return;
  }
}

void run(const LaunchConfig& process,
         const std::vector<std::string>& command,
         const Join& join_others) {
  warn(process);
  open_as_many_files_as_allowed();
  const JobProcess self = {process.member.rank.value,
                           process.member.world,
                           process.attempt,
                           process.began,
                           process.directory};
  const RankWork work = rank_work(command, self, process.join_timeout);
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
                   std::chrono::milliseconds timeout) {
  const bool trains = takes_train(words);
  return trains ? train_work(words, process, timeout) : doctor_work(words, process.processes);
}

CheckedWork check_work(std::vector<std::string> words, int processes, bool restarts) {
  if (takes_train(words)) return check_train(words, processes, restarts);
  return {.places = doctor_work(words, processes).places};
}

void add_worker(CLI::App& app) {
  CLI::App* subcommand = app.add_subcommand(
      "worker", "One rank of a job, started by an engine: worker [options] -- train ...");
  auto flags = std::make_shared<WorkerFlags>();
  subcommand->add_option("--rank", flags->rank, "This process's rank; else the engine's variables");
  subcommand->add_option(
      "--world", flags->world, "Number of processes; else the engine's variables");
  subcommand->add_option(
      "--rendezvous", flags->rendezvous, "Where rank 0 listens: tcp://host:port, or ipc://path");
  subcommand->add_option(
      "--keys", flags->keys, "Folder that millrace keys made, or this rank's file of it");
  subcommand->add_option("--job", flags->job, "Number of the job; equal on all ranks")
      ->capture_default_str();
  add_link_flags(*subcommand, flags->link);
  subcommand->add_option("command", flags->command, "-- train or doctor, and its options")
      ->required();
  subcommand->callback([flags] { run(place_of(*flags), flags->command, &join); });
}

bool train_as_rank(const std::vector<std::string>& words) {
  if (find_identity({}, own_environment()).world.value_or(1) == 1) return false;
  run(own_launch_config(), words, &join_launch_at);
  return true;
}

}  // namespace millrace::cli
