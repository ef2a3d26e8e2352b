// What a worker does between the rendezvous and its end: train, or measure the
// connections. Typed after "--".
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "cli/train/side_by_side.hpp"
#include "millrace/transport/listener.hpp"

namespace millrace::cli {

/// Thread-safety: externally synchronised, but `run`: its places run side by side.
struct RankWork {
  int places = 1;                    ///< of this process, which are ranks one after the other
  HelloFields fields;                ///< compared on all ranks before anything begins
  std::vector<ChannelDepth> depths;  ///< what its channels hold
  PlaceWork run;
};

/// One of the processes that do a job together.
struct JobProcess {
  int number = 0;
  int processes = 1;
  int attempt = 0;             ///< as LaunchConfig::attempt
  double began = 0;            ///< as LaunchConfig::began
  std::string directory = {};  ///< as LaunchConfig::directory
};

/// The file that rank 0 makes before it prints the result of a training: a job that fails later is
/// not started again. Empty without the launcher's directory.
[[nodiscard]] inline std::string result_mark(const std::string& directory) {
  return directory.empty() ? "" : directory + "/result";
}

/// What a launcher has to know of the work.
struct CheckedWork {
  int places = 1;             ///< of each process
  std::string save_folder{};  ///< of a training; empty: it saves nothing
};

/// The work that `words` name, for one process: "train" or "doctor", each with its options.
/// `timeout` as SaveOptions::patience. Throws InvalidArgument, and what the parser throws.
[[nodiscard]] RankWork rank_work(std::vector<std::string> words,
                                 const JobProcess& process,
                                 std::chrono::milliseconds timeout);

/// Refuses what no rank could do, before any is started; looks at no data. `restarts`: the job may
/// be started again, so that the checkpoints in its folder must be its own.
[[nodiscard]] CheckedWork check_work(std::vector<std::string> words, int processes, bool restarts);
[[nodiscard]] CheckedWork check_train(const std::vector<std::string>& options,
                                      int processes,
                                      bool restarts);

/// A process's share of a training.
[[nodiscard]] RankWork train_work(const std::vector<std::string>& options,
                                  const JobProcess& process,
                                  std::chrono::milliseconds timeout);

/// A rank's share of measuring all connections between neighbours.
[[nodiscard]] RankWork doctor_work(const std::vector<std::string>& options, int world);

}  // namespace millrace::cli
