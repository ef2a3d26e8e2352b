// millrace launch: a process for each rank, or for several, on this machine, over shared memory or
// ipc in a private directory, or over tcp with keys made for this job. A rank is a worker of ours
// or any program; both get their rank from the environment.
#include "cli/ranks/launch.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <filesystem>
#include <iostream>
#include <memory>
#include <sys/random.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "cli/exit_codes.hpp"
#include "cli/numbers.hpp"
#include "cli/ranks/process.hpp"
#include "cli/ranks/rank_work.hpp"
#include "cli/ranks/restarts.hpp"
#include "cli/ranks/sockets.hpp"
#include "cli/ranks/supervisor.hpp"
#include "cli/subcommands.hpp"
#include "cli/train/options.hpp"
#include "cli/vocabulary.hpp"
#include "millrace/core/error.hpp"
#include "millrace/training/checkpoint.hpp"
#include "millrace/transport/launch.hpp"
#include "millrace/transport/shared_memory.hpp"

namespace millrace::cli {

namespace {

std::uint64_t random_number() {
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != sizeof number)
    throw Error("the system has no random numbers");
  return number;
}

/// Else it is a program.
bool is_ours(const std::vector<std::string>& command) {
  return command.front() == "train" || command.front() == "doctor";
}

/// The parser takes "[a,b]" for two words.
std::vector<std::string> command_as_typed(const std::vector<std::string>& parsed,
                                          const std::vector<std::string>& words) {
  const auto dashes = std::find(words.begin(), words.end(), "--");
  const bool after = words.end() - dashes > 1 && dashes[1] == parsed.front();
  return after ? std::vector<std::string>(std::next(dashes), words.end()) : parsed;
}

std::string search_path() {
  const Variables variables = own_environment();
  const auto found = variables.find("PATH");
  return found == variables.end() ? "/usr/local/bin:/usr/bin:/bin" : found->second;
}

/// Where nothing else says p, the processes are the ranks: what is wrong with their number was
/// typed as -n.
CheckedWork checked_command(const LaunchFlags& flags) {
  if (!is_ours(flags.command)) {
    static_cast<void>(found_program(flags.command.front(), search_path()));
    return {};
  }
  const auto says_ranks = [](const std::string& word) {
    return word.starts_with("-p") || word.starts_with("--ranks") || word.starts_with("--plan") ||
           word.starts_with("--config");
  };
  try {
    return check_work(flags.command, flags.processes, flags.restarts > 0);
  } catch (const InvalidArgument& error) {
    if (std::any_of(flags.command.begin(), flags.command.end(), says_ranks)) throw;
    throw InvalidArgument(parameter_text(error).text(
        [](std::string_view name) { return name == "ranks" ? std::string("-n") : flag(name); }));
  }
}

CheckedWork checked_launch(const LaunchFlags& flags) {
  require(flags.processes >= 1 && flags.processes <= 4096,
          "-n " + std::to_string(flags.processes) + ": must be from 1 to 4096");
  check(flags.link);
  require(flags.grace >= 0 && flags.grace <= 1e6,
          "--grace " + plain(flags.grace) + ": must be from 0 to 1000000 seconds");
  require(flags.restarts >= 0 && flags.restarts <= 1'000'000,
          "--restarts " + std::to_string(flags.restarts) + ": must be from 0 to 1000000");
  return checked_command(flags);
}

bool knows_train(const std::string& option) {
  CLI::App train;
  TrainFlags flags;
  add_train_flags(train, flags);
  return train.get_option_no_throw(option) != nullptr;
}

/// An option that launch does not have: of the work, typed without the -- before it, or unknown.
void refuse_surplus(const CLI::App& subcommand, const LaunchFlags& flags) {
  if (subcommand.remaining_size() == 0) return;
  const std::string word = subcommand.remaining().front(), option = word.substr(0, word.find('='));
  const bool program = !flags.command.empty() && !is_ours(flags.command);
  if (!program && !knows_train(option))
    throw CLI::ExtrasError(subcommand.get_name(), subcommand.remaining());
  const std::string work = flags.command.empty() ? "train" : flags.command.front();
  throw InvalidArgument(option + ": not an option of launch; options of " + work +
                        " come after --: launch -n " + std::to_string(flags.processes) + " -- " +
                        work + " " + option + " ...");
}

bool keyed(const LaunchFlags& flags) {
  return uses_tcp(flags.link) && !flags.link.insecure;
}

/// A batch script is its engine's rank 0; any other was started next to launchers like this one.
void take_over_from_engine() {
  const Identity identity = find_identity({}, own_environment());
  if (identity.rank.value_or(0) != 0)
    throw Mismatch(
        "this is rank " + std::to_string(*identity.rank) + " by " + identity.source +
        ", but launch starts all ranks itself; a launcher starts millrace worker. Where no "
        "launcher has set " +
        identity.source + "=" + std::to_string(*identity.rank) + " in this shell, unset it");
  forget_identity();
}

/// Where the job's private directory is made. The variables are those that the library looks at.
std::string temporary_directory() {
  std::error_code error;
  std::string path = std::filesystem::temp_directory_path(error);
  if (!error) return path;
  std::string place = "/tmp";
  const Variables variables = own_environment();
  for (const char* name : {"TEMPDIR", "TEMP", "TMP", "TMPDIR"})
    if (const auto at = variables.find(name); at != variables.end())
      place = at->first + "=" + at->second;
  throw Error(place + ": the job has no place for its files: " + error.message());
}

void make_log_directory(const std::string& path) {
  if (path.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(path, error);
  require(!error, "--log-dir " + path + ": cannot be made: " + error.message());
}

/// Here and in every process, which inherits the limit.
void check_descriptors(int processes, int places) {
  constexpr std::size_t kInherited = 32;
  const std::size_t of_places =
      most_descriptors(processes * places) * static_cast<std::size_t>(places);
  require_descriptors(std::max(of_places, static_cast<std::size_t>(processes)) + kInherited,
                      "a job of " + std::to_string(processes) + " processes");
}

/// A file of keys that is open and has no name any more: a process that inherits it can read it,
/// once.
class KeyFile {
 public:
  explicit KeyFile(const std::string& path) : file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (file_ < 0)
      throw Error("the keys at " + path +
                  " cannot be read: " + std::generic_category().message(errno));
    ::unlink(path.c_str());
  }
  KeyFile(const KeyFile&) = delete;
  KeyFile& operator=(const KeyFile&) = delete;
  ~KeyFile() { ::close(file_); }

  [[nodiscard]] int descriptor() const { return file_; }

 private:
  int file_;
};

/// All ranks are on this host. Old systems, and containers that forbid it, leave the next best.
Backend backend_of_job(const LinkFlags& link) {
  if (link.link != "shm" && link.link != "auto") return backend_of(link.link);
  const auto problem = shared_memory_problem();
  if (!problem) return Backend::SharedMemory;
  std::cerr << "millrace launch: the ranks use ipc: " << *problem << '\n';
  return Backend::Ipc;
}

/// What is equal for all ranks and attempts.
LaunchConfig place_of_job(const LaunchFlags& flags) {
  LaunchConfig place = place_of(flags.link);
  place.backend = backend_of_job(flags.link);
  place.member.world = flags.processes;
  place.began =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  if (!flags.log_directory.empty())
    place.log_directory = std::filesystem::absolute(flags.log_directory);
  return place;
}

/// An attempt finds nothing of the one before: number, folder and keys are its own.
void begin_attempt(LaunchConfig& place,
                   int attempt,
                   const LaunchFlags& flags,
                   int places,
                   const std::string& directory) {
  if (attempt > 1) std::filesystem::remove_all(place.directory);
  place.attempt = attempt;
  place.member.job = random_number();
  place.directory = attempt == 0 ? directory : directory + "/" + std::to_string(attempt);
  place.rendezvous = "ipc://" + place.directory + "/rendezvous";
  if (attempt > 0 && ::mkdir(place.directory.c_str(), 0700) != 0)
    throw Error("cannot make " + place.directory + ": " + std::generic_category().message(errno));
  if (keyed(flags)) make_keys(place.directory, flags.processes * places);
}

/// This process's, with the place instead of what was said of another.
Variables environment_at(const LaunchConfig& place) {
  Variables variables = own_environment();
  for (const std::string& name : launch_variable_names()) variables.erase(name);
  for (const auto& [name, value] : launch_variables(place)) variables[name] = value;
  return variables;
}

std::vector<std::string> words_of_rank(const LaunchFlags& flags) {
  std::vector<std::string> words = flags.command;
  if (!is_ours(words))
    words.front() = found_program(words.front(), search_path());
  else
    words.insert(words.begin(), {std::filesystem::read_symlink("/proc/self/exe"), "worker", "--"});
  return words;
}

/// A process of several places finds all their keys in the job's private directory; one of a single
/// place gets a file that has no name any more.
pid_t start_process(Supervisor& supervisor,
                    const LaunchFlags& flags,
                    LaunchConfig place,
                    const JobProcess& process,
                    int places) {
  place.member.rank = Rank{process.number};
  std::optional<KeyFile> keys;
  if (keyed(flags) && places > 1) place.keys = place.directory;
  if (keyed(flags) && places == 1)
    keys.emplace(place.directory + "/keys-" + std::to_string(process.number));
  if (keys) place.keys_descriptor = keys->descriptor();
  return supervisor.start({.command = words_of_rank(flags),
                           .variables = environment_at(place),
                           .keys = place.keys_descriptor,
                           .joined_mark = is_ours(flags.command) ? "" : place.joined_mark()});
}

SupervisorOptions supervisor_options(const LaunchFlags& flags,
                                     const LaunchConfig& place,
                                     int places,
                                     const std::string& directory) {
  SupervisorOptions options{
      .log_directory = flags.log_directory.empty() ? directory : flags.log_directory,
      .places = places,
      .bind_cores = flags.bind_cores,
      .failure_notice = place.failure_notice(),
      .heartbeat_timeout = place.heartbeat_timeout,
      .grace = milliseconds(flags.grace),
      .join_timeout = place.join_timeout};
  if (flags.restarts > 0)
    options.step_of = [&place](int rank) { return place.step_of(Rank{rank}); };
  return options;
}

Continues continues_of(const LaunchFlags& flags, const CheckedWork& work) {
  if (!is_ours(flags.command)) return Continues::AsItsProgram;
  return work.save_folder.empty() ? Continues::FromTheBeginning : Continues::FromCheckpoints;
}

/// Steps before the one that a training continued from are those of its start.
JobFailure failure_of(const JobEnd& end,
                      const LaunchFlags& flags,
                      const CheckedWork& work,
                      const LaunchConfig& place) {
  JobFailure failure{.code = end.code,
                     .what = end.what,
                     .step = end.step,
                     .has_result = std::filesystem::exists(result_mark(place.directory))};
  if (!is_ours(flags.command)) {
    failure.progress = end.step;
    return failure;
  }
  const auto kept = find_checkpoints(work.save_folder);
  if (!kept.empty()) failure.progress = kept.front().step;
  if (end.step.value_or(0) < failure.progress.value_or(0) || !end.step) failure.step = -1;
  return failure;
}

}  // namespace

int launch(const LaunchFlags& flags) {
  const CheckedWork work = checked_launch(flags);
  take_over_from_engine();
  check_descriptors(flags.processes, work.places);
  if (keyed(flags)) keep_out_of_dumps(flags.link.core_dumps);
  if (flags.dry_run) {
    std::cout << "dry run: " << flags.processes << " processes of " << flags.command.front()
              << " would start; none was\n";
    return 0;
  }
  make_log_directory(flags.log_directory);
  const std::string parent = temporary_directory();
  Cleanup::sweep(parent);
  const Cleanup cleanup(parent);

  LaunchConfig place = place_of_job(flags);
  RestartHistory history;
  for (int attempt = 0;; ++attempt) {
    begin_attempt(place, attempt, flags, work.places, cleanup.directory());
    Supervisor supervisor(supervisor_options(flags, place, work.places, cleanup.directory()));
    for (int number = 0; number < flags.processes; ++number)
      cleanup.watch(
          start_process(supervisor, flags, place, {number, flags.processes}, work.places));
    const JobEnd end = supervisor.wait();
    cleanup.watch(0);
    RestartDecision decision;
    if (flags.restarts > 0 && !end.is_asked && may_restart(end.code, is_ours(flags.command)))
      decision = decide_restart(history, failure_of(end, flags, work, place), flags.restarts);
    if (!decision.why_not.empty())
      std::cerr << "millrace launch: not started again: " << decision.why_not << '\n';
    if (!decision.restarts) {
      supervisor.report();
      return end.code;
    }
    history = decision.history;
    std::cerr << "millrace launch: "
              << restart_line(*history.last, attempt + 1, decision.delay, continues_of(flags, work))
              << '\n';
    if (const int code = supervisor.pause(decision.delay); code != kDone) return code;
  }
}

void add_launch(CLI::App& app, const std::vector<std::string>& words) {
  CLI::App* subcommand = app.add_subcommand("launch",
                                            "Train, or run a program, with one process per rank: "
                                            "launch -n 4 -- train ... or -- ./program ...");
  auto flags = std::make_shared<LaunchFlags>();
  subcommand
      ->add_option(
          "-n,--processes",
          flags->processes,
          "Processes, one for each place of the pipelines, or fewer with as many places each")
      ->capture_default_str();
  subcommand->add_option(
      "--log-dir", flags->log_directory, "Keep a log per rank here; a restart appends to it");
  subcommand
      ->add_option("--grace",
                   flags->grace,
                   "Seconds from a signal or failure to the kill, and from the end of rank 0 until "
                   "processes that it started are no longer read")
      ->capture_default_str();
  subcommand
      ->add_option("--restarts",
                   flags->restarts,
                   "Restarts of all ranks after a lost or hung rank, without progress (newer "
                   "checkpoints; of a program, later steps). train continues from the newest "
                   "checkpoint in --save. A restart waits 0.1 s, each without progress twice as "
                   "long, at most 60 s. The same failure in the same step three times ends the job")
      ->capture_default_str();
  subcommand->add_flag(
      "--dry-run", flags->dry_run, "Check everything and print what would run, without a process");
  subcommand->add_flag("--bind-cores", flags->bind_cores, "Bind rank r to core r");
  add_link_flags(*subcommand, flags->link);
  subcommand
      ->add_option(
          "command", flags->command, "-- train or doctor and its options, or a program and its own")
      ->required();
  subcommand->footer(
      "A program calls join_launch() (C++: millrace/transport/launch.hpp), which finds its rank, "
      "the "
      "meeting and the keys in variables MILLRACE_*; what is typed after it is passed on "
      "untouched. "
      "Who has not joined --join-timeout seconds after its start is named.");
  subcommand->allow_extras();  // refuse_surplus knows better what to say of them
  subcommand->callback([subcommand, flags, words] {
    refuse_surplus(*subcommand, *flags);
    flags->command = command_as_typed(flags->command, words);
    if (flags->dry_run && flags->command.front() == "train")
      flags->command.emplace_back("--dry-run");
    if (const int code = launch(*flags); code != 0) throw ExitCode{code};
  });
}

}  // namespace millrace::cli
