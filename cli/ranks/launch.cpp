// millrace launch: one process per rank on this machine, over ipc in a private directory or over
// tcp with keys made for this job.
#include "cli/ranks/launch.hpp"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <sys/random.h>
#include <system_error>

#include "cli/numbers.hpp"
#include "cli/ranks/cleanup.hpp"
#include "cli/ranks/core_dumps.hpp"
#include "cli/ranks/descriptors.hpp"
#include "cli/ranks/environment.hpp"
#include "cli/ranks/keys.hpp"
#include "cli/ranks/rank_work.hpp"
#include "cli/ranks/supervisor.hpp"
#include "cli/train/options.hpp"
#include "cli/verbs.hpp"
#include "cli/vocabulary.hpp"
#include "millrace/core/error.hpp"

namespace millrace::cli {

namespace {

std::uint64_t random_number() {
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != sizeof number)
    throw Error("the system has no random numbers");
  return number;
}

/// Where nothing else says p, the processes are the ranks: what is wrong with their number was
/// typed as -n.
void check_command(const LaunchFlags& flags) {
  const auto says_ranks = [](const std::string& word) {
    return word.starts_with("-p") || word.starts_with("--ranks") || word.starts_with("--plan") ||
           word.starts_with("--config");
  };
  try {
    check_work(flags.command, flags.processes);
  } catch (const InvalidArgument& error) {
    if (std::any_of(flags.command.begin(), flags.command.end(), says_ranks)) throw;
    throw InvalidArgument(sentence_of(error).text(
        [](std::string_view name) { return name == "ranks" ? std::string("-n") : flag(name); }));
  }
}

void check_launch(const LaunchFlags& flags) {
  require(flags.processes >= 1 && flags.processes <= 4096,
          "-n " + std::to_string(flags.processes) + ": must be from 1 to 4096");
  check(flags.link);
  require(flags.grace >= 0 && flags.grace <= 1e6,
          "--grace " + plain(flags.grace) + ": must be from 0 to 1000000 seconds");
  check_command(flags);
}

bool knows_train(const std::string& option) {
  CLI::App train;
  TrainFlags flags;
  add_train_flags(train, flags);
  return train.get_option_no_throw(option) != nullptr;
}

/// An option that launch does not have: of the work, typed without the -- before it, or of nobody.
void refuse_surplus(const CLI::App& verb, const LaunchFlags& flags) {
  if (verb.remaining_size() == 0) return;
  const std::string word = verb.remaining().front(), option = word.substr(0, word.find('='));
  if (!knows_train(option)) throw CLI::ExtrasError(verb.get_name(), verb.remaining());
  const bool doctor = std::count(flags.command.begin(), flags.command.end(), "doctor") != 0;
  const std::string work = doctor ? "doctor" : "train";
  throw InvalidArgument(option + " is no option of launch; options of " + work +
                        " come behind --: launch -n " + std::to_string(flags.processes) + " -- " +
                        work + " " + option + " ...");
}

bool keyed(const LaunchFlags& flags) {
  return flags.link.link == "tcp" && !flags.link.insecure;
}

/// A batch script is its engine's rank 0; any other was started beside launchers like this one.
void take_over_from_engine() {
  const Identity identity = find_identity({}, environment());
  if (identity.rank.value_or(0) != 0)
    throw Mismatch(
        "this is rank " + std::to_string(*identity.rank) + " by " + identity.source +
        ", but launch starts all ranks itself; what an engine starts is millrace worker");
  forget_identity();
}

/// Where the job's private directory is made. The variables are those that the library looks at.
std::string temporary_directory() {
  std::error_code error;
  std::string path = std::filesystem::temp_directory_path(error);
  if (!error) return path;
  std::string place = "/tmp";
  const Variables variables = environment();
  for (const char* name : {"TEMPDIR", "TEMP", "TMP", "TMPDIR"})
    if (const auto at = variables.find(name); at != variables.end())
      place = at->first + "=" + at->second;
  throw Error(place + ": the job has no place for its files: " + error.message());
}

/// Nobody typed where they go: that they cannot be written there is no usage.
void make_keys(const std::string& directory, int ranks) {
  try {
    static_cast<void>(write_key_files(directory, ranks));
  } catch (const InvalidArgument& refusal) {
    throw Error(refusal.what());
  }
}

void make_log_directory(const std::string& path) {
  if (path.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(path, error);
  require(!error, "--log-dir " + path + ": cannot be made: " + error.message());
}

/// Here and in every rank, which inherits the limit.
void check_descriptors(int ranks) {
  constexpr std::size_t kInherited = 32;
  const std::string job = "a job of " + std::to_string(ranks) + " processes";
  require_descriptors(std::max(descriptors_of_rank(ranks) + kInherited,
                               static_cast<std::size_t>(ranks) + kInherited),
                      job);
}

/// What a worker is started with; keys are named by their file only.
std::vector<std::string> worker_words(const LaunchFlags& flags,
                                      const std::string& directory,
                                      const std::string& job,
                                      int rank) {
  // clang-format off
  std::vector<std::string> words = {
      std::filesystem::read_symlink("/proc/self/exe"), "worker",
      "--rank", std::to_string(rank),
      "--world", std::to_string(flags.processes),
      "--rendezvous", "ipc://" + directory + "/rendezvous",
      "--obituary", directory + "/obituary",
      "--job", job,
      "--endpoint", flags.link.link,
      "--interface", flags.link.interface,
      "--silence", exact(flags.link.silence),
      "--patience", exact(flags.link.patience)};
  // clang-format on
  if (keyed(flags))
    words.insert(words.end(), {"--keys", directory + "/keys-" + std::to_string(rank)});
  if (flags.link.hang) words.insert(words.end(), {"--hang", exact(*flags.link.hang)});
  if (flags.link.insecure) words.emplace_back("--insecure");
  if (flags.link.core_dumps) words.emplace_back("--core-dumps");
  words.emplace_back("--");
  words.insert(words.end(), flags.command.begin(), flags.command.end());
  return words;
}

}  // namespace

int launch(const LaunchFlags& flags) {
  check_launch(flags);
  take_over_from_engine();
  check_descriptors(flags.processes);
  if (keyed(flags)) keep_out_of_dumps(flags.link.core_dumps);
  make_log_directory(flags.log_directory);
  const std::string place = temporary_directory();
  Cleanup::sweep(place);
  const Cleanup cleanup(place);
  const std::string& path = cleanup.directory();
  if (keyed(flags)) make_keys(path, flags.processes);

  Supervisor supervisor({.log_directory = flags.log_directory.empty() ? path : flags.log_directory,
                         .bind_cores = flags.bind_cores,
                         .obituary = path + "/obituary",
                         .silence = milliseconds(flags.link.silence),
                         .grace = milliseconds(flags.grace)});
  const std::string job = std::to_string(random_number());
  for (int rank = 0; rank < flags.processes; ++rank)
    supervisor.start(worker_words(flags, path, job, rank));
  return supervisor.wait();
}

void add_launch(CLI::App& app) {
  CLI::App* verb =
      app.add_subcommand("launch", "Train with one process per rank: launch -n 4 -- train ...");
  auto flags = std::make_shared<LaunchFlags>();
  verb->add_option(
          "-n,--processes", flags->processes, "Processes, one for each place of the pipeline")
      ->capture_default_str();
  verb->add_option("--log-dir", flags->log_directory, "Keep a log per rank here");
  verb->add_option("--grace", flags->grace, "Seconds from a signal or failure to the kill")
      ->capture_default_str();
  verb->add_flag("--bind-cores", flags->bind_cores, "Bind rank r to core r");
  add_link_flags(*verb, flags->link);
  verb->add_option("command", flags->command, "-- train or doctor, and its options")->required();
  verb->allow_extras();  // refuse_surplus knows better what to say of them
  verb->callback([verb, flags] {
    refuse_surplus(*verb, *flags);
    const std::string work = flags->command.front();
    flags->command = renamed(work, std::move(flags->command));
    if (const int code = launch(*flags); code != 0) throw ExitCode{code};
  });
}

}  // namespace millrace::cli
