// What does a pipeline's rank keep, and for which layers? Peaks of 1F1B in 4 stages over a
// transformer of 1024 positions: what the meters counted in a step next to what the plan and the
// layers predict, split by kind of layer, and what a forward that keeps [positions, positions] of
// every head would keep beyond it. A line per rank, in bytes; one that does not add up is an error.
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "millrace/training/records.hpp"
#include "millrace/training/trainer.hpp"

namespace {

using namespace millrace;

constexpr const char* kModel = "gpt:layers=8,d=256,heads=8,context=1024,vocabulary=96";
constexpr std::int64_t kHeads = 8, kContext = 1024, kWords = 96;
constexpr int kRanks = 4, kMicroBatches = 8;
constexpr UnitSize kUnit{.samples = 1, .positions = kContext};

Dataset tokens() {
  Dataset data;
  data.name = "tokens";
  data.classes = kWords;
  Tensor text(DType::I32, {kMicroBatches, kContext}), next(DType::I32, {kMicroBatches, kContext});
  text.fill_zero();
  next.fill_zero();
  data.inputs.push_back({"tokens", std::move(text), true});
  data.targets.push_back({"next", std::move(next), true});
  return data;
}

/// A trained step, and what was predicted of it.
struct Step {
  explicit Step(DType precision)
      : model(parse_model(kModel)),
        trainer((model.precision = precision, model),
                {.shape = {.ranks = kRanks, .micro_batches = kMicroBatches}}) {
    Batch batch(tokens(), kMicroBatches);
    counted = trainer.step(batch).peak_stash_bytes;
    const std::vector<UnitSize> sizes(kMicroBatches, kUnit);
    predicted = predict_stash_peaks(trainer.executor().program(), trainer.stages(), sizes);
  }

  ModelSpec model;
  Trainer trainer;
  std::vector<std::size_t> counted, predicted;
};

/// The types that layer `i` is given.
std::vector<TensorType> inputs_of(const ModelSpec& model, std::size_t i) {
  static const auto types = infer_types(model);
  const LayerSpec& spec = model.layers[i];
  std::vector<TensorType> inputs;
  if (spec.inputs.empty()) inputs.push_back(i == 0 ? model.inputs[0] : types[i - 1][0]);
  for (const LayerValue& value : spec.inputs)
    inputs.push_back(
        types[static_cast<std::size_t>(value.layer)][static_cast<std::size_t>(value.index)]);
  for (TensorType& input : inputs) input = sized(input, kUnit);
  return inputs;
}

/// Bytes that a stage keeps of one micro-batch, by kind of layer.
std::map<std::string, double> kept_by_kind(const ModelSpec& model, int stage) {
  const std::vector<int> boundaries = even_boundaries(model, kRanks);
  const auto module = stage_without_parameters(model, boundaries, stage);
  const auto first = static_cast<std::size_t>(boundaries[static_cast<std::size_t>(stage)]);
  std::map<std::string, double> kept;
  for (std::size_t i = 0; i < module->layer_count(); ++i)
    kept[model.layers[first + i].kind] +=
        static_cast<double>(module->layer(i).bytes(inputs_of(model, first + i)).after_forward);
  return kept;
}

/// Attention layers of a stage.
std::int64_t attentions(const ModelSpec& model, int stage) {
  const std::vector<int> boundaries = even_boundaries(model, kRanks);
  const auto at = static_cast<std::size_t>(stage);
  return std::count_if(model.layers.begin() + boundaries[at],
                       model.layers.begin() + boundaries[at + 1],
                       [](const LayerSpec& layer) { return layer.kind == "attention"; });
}

void memory(benchmark::State& state, DType precision) {
  static std::map<DType, Step> steps;
  const Step& step = steps.try_emplace(precision, precision).first->second;
  for (auto _ : state) {
  }
  const auto rank = static_cast<int>(state.range(0));
  const auto at = static_cast<std::size_t>(rank);
  const StageBody& body = *step.trainer.stages()[at].body;
  const StashBytes stage = body.stash_bytes(kUnit, false);
  const int units = kRanks - rank;  // of 1F1B, at the peak
  double sum = 0;
  for (const auto& [kind, bytes] : kept_by_kind(step.model, rank)) {
    if (bytes > 0) state.counters[kind] = units * bytes;
    sum += bytes;
  }
  const auto after_forward = static_cast<double>(stage.after_forward);
  if (after_forward > sum) state.counters["gradient_of_loss"] = units * (after_forward - sum);
  const auto in_backward = static_cast<double>(stage.input_peak) - after_forward;
  state.counters["inside_backward"] = in_backward;
  state.counters["predicted"] = static_cast<double>(step.predicted[at]);
  state.counters["counted"] = static_cast<double>(step.counted[at]);
  state.counters["scores_not_kept"] =
      static_cast<double>(units * attentions(step.model, rank) * kHeads * kContext * kContext * 4);
  if (step.counted[at] != step.predicted[at] ||
      units * after_forward + in_backward != static_cast<double>(step.predicted[at]))
    state.SkipWithError("bytes by cause do not add up to what was counted");
}

}  // namespace

int main(int argc, char** argv) {
  for (const DType precision : {DType::F32, DType::BF16})
    benchmark::RegisterBenchmark((std::string("memory/") + name_of(precision)).c_str(),
                                 [=](benchmark::State& state) { memory(state, precision); })
        ->ArgName("rank")
        ->DenseRange(0, kRanks - 1)
        ->Iterations(1);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
