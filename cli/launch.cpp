// millrace launch: one process per rank on this machine, over ipc in a private directory or over
// tcp with keys made for this job.
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <sys/random.h>
#include <unistd.h>

#include "cli/janitor.hpp"
#include "cli/supervisor.hpp"
#include "cli/verbs.hpp"
#include "millrace/core/error.hpp"
#include "millrace/transport/zeromq.hpp"

namespace millrace::cli {

namespace {

struct LaunchFlags {
  int ranks = 4;
  std::string log_directory;
  std::string link = "ipc";
  std::string interface = "127.0.0.1";
  double grace = 5;
  double silence = 10;
  double hang = 10;
  double patience = 60;
  bool bind_cores = false;
  bool insecure = false;
  std::vector<std::string> command;
};

/// Readable by this user alone from its first moment.
void write_private(const std::string& path, const std::string& text) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  const bool written =
      file >= 0 && ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (file >= 0) ::close(file);
  if (!written) throw Error("cannot write " + path);
}

/// One file per rank: its own pair, then the public keys of all.
void write_keys(const std::string& directory, int ranks) {
  std::vector<CurveKeys> keys;
  std::string public_keys;
  for (int i = 0; i < ranks; ++i) {
    keys.push_back(make_curve_keys());
    public_keys += keys.back().public_key + "\n";
  }
  for (int i = 0; i < ranks; ++i) {
    const CurveKeys& own = keys[static_cast<std::size_t>(i)];
    write_private(directory + "/keys-" + std::to_string(i),
                  own.public_key + "\n" + own.secret_key + "\n" + public_keys);
  }
}

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(1000 * seconds));
}

std::uint64_t random_number() {
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != sizeof number)
    throw Error("the system has no random numbers");
  return number;
}

void check(const LaunchFlags& flags) {
  require(flags.ranks >= 1 && flags.ranks <= 4096,
          "-n " + std::to_string(flags.ranks) + ": must be from 1 to 4096");
  require(flags.link == "ipc" || flags.link == "tcp",
          "--endpoint " + flags.link + ": known are ipc, tcp");
  require(!flags.command.empty() && flags.command.front() == "train",
          "launch runs train: millrace launch -n 4 -- train [its options]");
}

bool keyed(const LaunchFlags& flags) {
  return flags.link == "tcp" && !flags.insecure;
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
      "--world", std::to_string(flags.ranks),
      "--rendezvous", "ipc://" + directory + "/rendezvous",
      "--obituary", directory + "/obituary",
      "--job", job,
      "--endpoint", flags.link,
      "--interface", flags.interface,
      "--silence", std::to_string(flags.silence),
      "--hang", std::to_string(flags.hang),
      "--patience", std::to_string(flags.patience)};
  // clang-format on
  if (keyed(flags))
    words.insert(words.end(), {"--keys", directory + "/keys-" + std::to_string(rank)});
  if (flags.insecure) words.emplace_back("--insecure");
  words.emplace_back("--");
  words.insert(words.end(), flags.command.begin(), flags.command.end());
  return words;
}

int launch(const LaunchFlags& flags) {
  check(flags);
  if (flags.insecure && flags.link == "tcp")
    std::cerr << "millrace launch: --insecure: whoever reaches "
              << flags.interface << " can read and change this training\n";
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  const std::string& path = directory.path();
  const Janitor janitor(path);
  if (keyed(flags)) write_keys(path, flags.ranks);
  if (!flags.log_directory.empty()) std::filesystem::create_directories(flags.log_directory);

  Supervisor supervisor({.log_directory = flags.log_directory.empty() ? path : flags.log_directory,
                         .bind_cores = flags.bind_cores,
                         .obituary = path + "/obituary",
                         .silence = milliseconds(flags.silence),
                         .grace = milliseconds(flags.grace)});
  const std::string job = std::to_string(random_number());
  for (int rank = 0; rank < flags.ranks; ++rank)
    supervisor.start(worker_words(flags, path, job, rank));
  return supervisor.wait();
}

}  // namespace

void add_launch(CLI::App& app) {
  CLI::App* verb =
      app.add_subcommand("launch", "Train with one process per rank: launch -n 4 -- train ...");
  auto flags = std::make_shared<LaunchFlags>();
  verb->add_option("-n,--ranks", flags->ranks, "Processes, one per rank")->capture_default_str();
  verb->add_option("--log-dir", flags->log_directory, "Keep a log per rank here");
  verb->add_option("--endpoint", flags->link, "ipc, or tcp with keys")->capture_default_str();
  verb->add_option("--interface", flags->interface, "Address to listen on, for tcp")
      ->capture_default_str();
  verb->add_option("--grace", flags->grace, "Seconds from a signal or failure to the kill")
      ->capture_default_str();
  verb->add_option(
          "--silence", flags->silence, "Seconds without a word until a rank counts as hung")
      ->capture_default_str();
  verb->add_option("--hang",
                   flags->hang,
                   "Least seconds of one action until its rank counts as hung; stretches "
                   "to 16 times the longest of its kind, and 12 times for the first")
      ->capture_default_str();
  verb->add_option("--patience", flags->patience, "Seconds until all ranks must have met")
      ->capture_default_str();
  verb->add_flag("--bind-cores", flags->bind_cores, "Bind rank r to core r");
  verb->add_flag("--insecure", flags->insecure, "tcp without keys");
  verb->add_option("command", flags->command, "-- train and its options")->required();
  verb->callback([flags] {
    if (const int code = launch(*flags); code != 0) throw ExitCode{code};
  });
}

}  // namespace millrace::cli
