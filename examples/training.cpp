// The code of training/README.md: a job, state moved to another split, checkpoints, records of
// steps, and checks of stages.
#include <filesystem>
#include <iostream>
#include <memory>
#include <millrace/millrace.hpp>
#include <millrace/training/checkpoint.hpp>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

using namespace millrace;

namespace {

double job() {
  const ModelSpec model = parse_model("mlp:64-96-96-96-10");
  const TrainTest data = load_data("digits", /*seed=*/1);
  Trainer trainer(model,
                  {.shape = {.ranks = 3}},
                  {.step = {.learning_rate = {.base = 3e-3}}, .fit = {.epochs = 20}});
  std::vector<double> losses;
  trainer.on_epoch = [&](const EpochReport& epoch) { losses.push_back(epoch.mean_loss()); };
  trainer.fit(data.train);
  return trainer.evaluate(data.test).accuracy();
}

using Saved = std::vector<std::tuple<std::string, std::string, Tensor>>;

/// Trains on two stages, copies the state and continues on four.
std::string moved(const ModelSpec& model, const Dataset& data) {
  const StepOptions step = {.learning_rate = {.total_updates = 24}};
  Trainer first(model, {.shape = {.ranks = 2}}, {.step = step, .fit = {.epochs = 1}});
  first.fit(data);
  Saved saved;
  for (const std::string& name : first.state().names())
    for (const char* part : {"value", "first_moment", "second_moment"})
      saved.emplace_back(name, part, first.state().read(name, part).clone());
  const TrainingCounters saved_counters = first.state().counters();

  Trainer trainer(model, {.shape = {.ranks = 4}}, {.step = step, .fit = {.epochs = 2}});
  for (const auto& [name, part, values] : saved)  // in every process, for the names that it hosts
    if (trainer.state().hosts(name)) trainer.state().write(name, values, part);
  trainer.state().set_counters(saved_counters);
  Loader loader(data, trainer.loader_options());
  loader.seek(trainer.state().counters().position);
  trainer.fit(loader);
  return trainer.weights_hash();
}

std::string resumed(const ModelSpec& model, const Dataset& data, const std::string& folder) {
  Trainer trainer(model,
                  PipelineOptions(),
                  {.fit = {.epochs = 2}, .save = {.folder = folder, .every_steps = 10}});
  if (!find_checkpoints(folder).empty()) trainer.resume(folder);
  trainer.fit(data);
  return trainer.weights_hash();
}

int records(const ModelSpec& model, const Dataset& data) {
  Trainer trainer(
      model, {.shape = {.ranks = 3}}, {.fit = {.epochs = 1}, .watch = {.records = true}});
  std::string lines;
  trainer.on_record = [&](const StepRecord& record) { lines += json_line(record) + '\n'; };
  return static_cast<int>(trainer.fit(data).epochs.size());
}

}  // namespace

int main() {
  const ModelSpec model = parse_model("mlp:64-96-96-96-10");
  const Dataset data = load_data("digits", 1).train;
  const auto folder = std::filesystem::temp_directory_path() / "millrace_example_training";
  std::filesystem::remove_all(folder);

  std::cout << (job() > 0.95 ? "trained" : "not trained") << '\n';
  Trainer straight(model,
                   {.shape = {.ranks = 1}},
                   {.step = {.learning_rate = {.total_updates = 24}}, .fit = {.epochs = 2}});
  straight.fit(data);
  std::cout << (moved(model, data) == straight.weights_hash() ? "same" : "other") << " weights\n";
  const std::string saved = resumed(model, data, folder.string());
  std::cout << (resumed(model, data, folder.string()) == saved ? "resumed" : "lost") << '\n';
  std::cout << records(model, data) << " epoch\n";
  const auto comparison = verify_against_sequential(model, {.schedule = "zb-h1"}, data);
  std::cout << to_string(comparison) << '\n';
  std::filesystem::remove_all(folder);
}
