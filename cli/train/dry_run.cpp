// --dry-run: what a run would do, what it would need, and whether its files can be written; without
// training.
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <numeric>
#include <ostream>

#include <nlohmann/json.hpp>

#include "cli/files.hpp"
#include "cli/numbers.hpp"
#include "cli/train/records.hpp"
#include "cli/train/run.hpp"
#include "millrace/stages/partition.hpp"
#include "millrace/training/optimizer.hpp"

namespace millrace::cli {

namespace {

namespace fs = std::filesystem;

/// Predicted bytes of a rank.
struct RankMemory {
  std::vector<std::string> stages, layers;
  std::size_t weights = 0, gradients = 0, optimizer = 0, activations = 0;

  [[nodiscard]] std::size_t sum() const { return weights + gradients + optimizer + activations; }
};

std::vector<RankMemory> memory_of(const TrainJob& job, const Trainer& trainer) {
  const Program& program = trainer.executor().program();
  std::vector<RankMemory> ranks(static_cast<std::size_t>(program.shape.ranks));
  for (const HostedStage& hosted : trainer.stages()) {
    RankMemory& rank = ranks[program.shape.rank(hosted.replica, hosted.stage).index()];
    const LayerRange layers = layers_of(job.boundaries, hosted.stage.index());
    rank.stages.push_back(fmt::format("{}", hosted.stage.value));
    rank.layers.push_back(layers.last - layers.first == 1
                              ? fmt::format("{}", layers.first)
                              : fmt::format("{}-{}", layers.first, layers.last - 1));
    for (const Parameter* parameter : hosted.body->parameters()) {
      rank.weights += parameter->value.bytes();
      rank.gradients += parameter->gradient.bytes();
    }
  }
  const auto activations = predict_stash_peaks(program, trainer.stages(), unit_sizes(job));
  const auto optimizer =
      predict_optimizer_bytes(program.shape,
                              trainer.stages(),
                              make_optimizer(job.options.step.optimizer)->slots(),
                              job.options.step.shard_optimizer ? job.grid().data() : 1);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    ranks[rank].activations = activations[rank];
    ranks[rank].optimizer = optimizer[rank];
  }
  return ranks;
}

/// Throws InvalidArgument where the first checkpoint could not be written. Makes no folder.
void require_folder(const std::string& folder) {
  if (folder.empty()) return;
  fs::path place = fs::absolute(folder);
  while (!fs::exists(place) && place.has_parent_path() && place != place.parent_path())
    place = place.parent_path();
  require_writable(fmt::format("--save {}:", folder), (place / "checkpoint").string());
}

std::string mebibytes(std::size_t bytes) {
  return fmt::format("{:.2f}", static_cast<double>(bytes) / (1 << 20));
}

nlohmann::ordered_json json_of(const TrainJob& job, const std::vector<RankMemory>& memory) {
  nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
  for (const RankMemory& rank : memory)
    ranks.push_back({{"stages", rank.stages},
                     {"layers", rank.layers},
                     {"weight_bytes", rank.weights},
                     {"gradient_bytes", rank.gradients},
                     {"optimizer_bytes", rank.optimizer},
                     {"activation_bytes", rank.activations}});
  return {{"settings", settings_of(job, job.grid().data() > 1)},
          {"steps", job.steps()},
          {"ranks", ranks}};
}

void print_tables(std::ostream& stream,
                  const TrainJob& job,
                  const Trainer& trainer,
                  const std::vector<RankMemory>& memory) {
  const std::int64_t done = trainer.state().counters().mini_batches;
  std::int64_t parameters = 0;
  for (const std::string& name : trainer.state().names())
    parameters += trainer.state().read(name).elements();
  stream << fmt::format("model     {}: {} layers, {} parameters, {}\n",
                        job.model.text,
                        job.model.layer_count(),
                        parameters,
                        name_of(job.model.precision))
         << fmt::format("data      {}: {} training samples, {} test samples\n",
                        job.flags.data,
                        job.data.train.size(),
                        job.data.test.size())
         << fmt::format("schedule  {}: valid, deadlock-free\n", trainer.executor().program().name)
         << fmt::format("steps     {} mini-batches; an epoch has {}{}\n",
                        job.steps(),
                        job.batches_per_epoch(),
                        done > 0 ? fmt::format("; {} are done", done) : "")
         << fmt::format("batch     {}\n\n", batch_line(job));
  std::vector<std::vector<std::string>> rows = {
      {"rank", "stages", "layers", "weights", "gradients", "optimizer", "activations", "sum"}};
  for (std::size_t rank = 0; rank < memory.size(); ++rank) {
    const RankMemory& of = memory[rank];
    rows.push_back({fmt::format("{}", rank),
                    fmt::format("{}", fmt::join(of.stages, ",")),
                    fmt::format("{}", fmt::join(of.layers, ",")),
                    mebibytes(of.weights),
                    mebibytes(of.gradients),
                    mebibytes(of.optimizer),
                    mebibytes(of.activations),
                    mebibytes(of.sum())});
  }
  stream << table(rows)
         << "Predicted memory of a rank in MiB, without data, messages and libraries.\n"
         << "Dry run: nothing was trained or written.\n";
}

}  // namespace

void dry_run(std::ostream& stream, const TrainJob& job) {
  const TrainOutputs outputs(job.flags);
  const Watching watching(job);
  require_folder(job.options.save.folder);
  TrainerOptions options = job.options;
  options.step.shard_optimizer = false;  // of a single process
  Trainer trainer(job.model, job.plan(), options);
  begin_from(trainer, job.flags.start, !job.flags.json);
  const std::vector<RankMemory> memory = memory_of(job, trainer);
  if (job.flags.json)
    stream << json_of(job, memory).dump(2) << '\n';
  else
    print_tables(stream, job, trainer, memory);
  stream << std::flush;
}

}  // namespace millrace::cli
