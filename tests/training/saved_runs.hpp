// Small trainings that save and resume: what the tests of checkpoints share.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/training/ranks.hpp"
#include "millrace/training/trainer.hpp"
#include "tests/training/first_digits.hpp"
#include "tests/training/on_ranks.hpp"

namespace millrace::testing_training {

inline const char* const kSavedModel = "mlp:64-12-10-10-10,norm=batch,dropout=0.2";

/// Does not wait for the disk, which nobody pulls out of a test.
class Hasty : public FileSystem {
 public:
  void sync(const OpenFile&) override {}
  void sync_folder(const std::string&) override {}
};

/// 25, 25 and 10 samples of 60; the learning rate moves in every update.
inline TestOptions saved_options(const std::string& folder, int ranks = 2) {
  TestOptions options = plain_options(ranks, 4);
  options.step.optimizer.kind = OptimizerKind::AdamW;
  options.step.optimizer.weight_decay = 0.05;
  options.step.clip_norm = 0.5;
  options.step.learning_rate = {.kind = LearningRateKind::Cosine, .base = 0.02, .warm_up = 3};
  options.fit.batch_size = 25;
  options.fit.epochs = 4;
  options.save.folder = folder;
  options.save.files = std::make_shared<Hasty>();
  return options;
}

/// fit() that is stopped after so many steps of it.
inline FitReport fit_steps(Trainer& trainer, const Dataset& data, int steps) {
  std::stop_source stop;
  trainer.on_step = [&](const StepReport&) {
    if (--steps == 0) stop.request_stop();
  };
  return trainer.fit(data, stop.get_token());
}

inline TrainerParts parts_on(const TestOptions& options,
                             Endpoint& endpoint,
                             ProcessGroup& group,
                             const ModelSpec& model = parse_model(kSavedModel),
                             int copies = 1) {
  const GridPosition seat(endpoint, Grid(copies, endpoint.world() / copies));
  const Program program = generate(
      options.pipeline.schedule,
      {.ranks = seat.grid().pipeline(), .micro_batches = options.pipeline.shape.micro_batches});
  TestOptions own = options;
  own.pipeline.shape.ranks = program.shape.ranks;
  return rank_parts(model, {program}, own, seat, group);
}

inline std::string bytes_in(const std::filesystem::path& file) {
  std::stringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

/// All files of a folder but the one that tells of the run.
inline std::map<std::string, std::string> files_in(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().filename() != "run.json")
      files[entry.path().filename().string()] = bytes_in(entry.path());
  return files;
}

inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

}  // namespace millrace::testing_training
