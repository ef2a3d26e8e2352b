// Runs a case of the transformer's matrix, in one process or as one for every rank, in one go or in
// two with a checkpoint between two cuts; and says what it has to give.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/training/ranks.hpp"
#include "millrace/transport/private_directory.hpp"
#include "millrace/transport/zeromq.hpp"
#include "training/gpt_matrix.hpp"
#include "training/on_ranks.hpp"
#include "training/plain_gpt.hpp"
#include "training/sample_files.hpp"
#include "training/saved_runs.hpp"

namespace millrace::testing_training {

/// Trains on, to the end or through so many steps; adds to the losses.
inline void go_on(Trainer& trainer, const GptCase& of, GptRun& run, int steps = 0) {
  std::stop_source stop;
  trainer.on_step = [&](const StepReport& report) {
    run.losses[report.global_step] = report.mean_loss();
    if (--steps == 0) stop.request_stop();
  };
  trainer.fit(gpt_verses(of.lengths), stop.get_token());
  run.weights = trainer.weights_hash();
}

/// Where the first half of a resumed training runs: another number of ranks and another cut,
/// schedule, executor, recompute and number of threads.
inline GptCase elsewhere(const GptCase& of) {
  GptCase other = of;
  other.ranks = of.ranks % 4 + 1;
  other.schedule = of.slices > 1 ? "terapipe" : of.ranks % 2 == 0 ? "zb-h1" : "interleaved";
  other.place = of.place == "flow-graph" ? "flow-graph" : "ranks";
  other.recompute = of.recompute == "none" ? "every-3" : "none";
  other.is_ragged = !of.is_ragged;
  other.is_resumed = false;
  other.threads = of.threads % 3 + 1;
  return other;
}

inline void save_half(const GptCase& of, const std::string& folder, GptRun& run) {
  TestOptions options = options_of(of);
  options.save.folder = folder;
  options.save.files = std::make_shared<Hasty>();
  Trainer trainer(gpt_of(of), options.pipeline, options);
  go_on(trainer, of, run, 2);
}

inline std::vector<std::unique_ptr<Endpoint>> sockets(const GptCase& of,
                                                      const Program& program,
                                                      const PrivateDirectory& directory) {
  ZeroMqOptions options;
  options.world = of.ranks;
  options.link = of.place == "tcp" ? ZeroMqLink::Tcp : ZeroMqLink::Ipc;
  options.depths =
      channel_depths(gpt_of(of), {program, options_of(of).pipeline.boundaries}, options_of(of));
  options.directory = directory.path();
  return zeromq_mesh(options);
}

/// Every rank with a process' means; all of them have to give the same.
inline GptRun run_on_sockets(const GptCase& of, const std::string& folder, const GptRun& before) {
  const Program program = program_of(of);
  const TestOptions options = options_of(of);
  std::mutex mutex;
  std::vector<GptRun> runs;
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  on_ranks(sockets(of, program, directory), [&](Endpoint& endpoint, ProcessGroup& group) {
    Trainer trainer(
        rank_parts(gpt_of(of), {program, options.pipeline.boundaries}, options, endpoint, group));
    if (!folder.empty()) trainer.resume(folder);
    GptRun run = before;
    go_on(trainer, of, run);
    const std::lock_guard lock(mutex);
    runs.push_back(run);
  });
  EXPECT_EQ(runs.size(), static_cast<std::size_t>(of.ranks));
  for (const GptRun& run : runs) EXPECT_EQ(run, runs.front());
  return runs.empty() ? GptRun{} : runs.front();
}

inline GptRun run(const GptCase& of) {
  GptRun run;
  std::unique_ptr<testing_files::Folder> folder;
  if (of.is_resumed) {
    folder = std::make_unique<testing_files::Folder>("gpt_case_" + of.place);
    save_half(elsewhere(of), folder->path(), run);
    EXPECT_EQ(run.losses.size(), 2U);
  }
  const std::string from = folder ? folder->path() : std::string();
  if (of.place == "ipc" || of.place == "tcp") return run_on_sockets(of, from, run);
  Trainer trainer = trainer_of(gpt_of(of), options_of(of));
  if (!from.empty()) {
    EXPECT_TRUE(trainer.resume(from).changed.empty());
  }
  go_on(trainer, of, run);
  return run;
}

/// What it has to give: the plain loop's run, or, of an order of its own, that of the sequential
/// executor.
inline GptRun wanted(const GptCase& of) {
  if (has_own_order(of.schedule)) {
    GptCase alone = of;
    alone.place = "sequential";
    alone.recompute = "none";
    alone.threads = 1;
    return run(alone);
  }
  static std::map<std::tuple<int, bool, DType, std::string, Lengths>, GptRun> known;
  GptRun& plain = known[{of.slices, of.is_tied, of.precision, of.form, of.lengths}];
  if (plain.weights.empty()) {
    TestOptions options = options_of({});
    options.pipeline.shape.slices = of.slices;
    plain = PlainGpt(gpt_of(of), options).learn(gpt_verses(of.lengths));
  }
  return plain;
}

}  // namespace millrace::testing_training
