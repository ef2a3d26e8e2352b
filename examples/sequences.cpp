// A model of sequences: token ids in, a class per position out, a branch that joins again, and a
// schedule with slices. The causal layer sees the slices before its own, so the pipeline and the
// plain loop end with the same weights.
#include <iomanip>
#include <iostream>
#include <millrace/millrace.hpp>
#include <string>
#include <utility>

namespace {

using namespace millrace;

constexpr int kTokens = 8;
constexpr int kSequences = 96;
constexpr int kLength = 12;

/// The class of a position is the token two places before it; the first two do not count.
Dataset echoes() {
  Tensor tokens(DType::I32, {kSequences, kLength});
  Tensor classes(DType::I32, {kSequences, kLength});
  Tensor weights(DType::F32, {kSequences, kLength});
  for (std::uint32_t i = 0; i < kSequences * kLength; ++i) {
    tokens.as<std::int32_t>()[i] = static_cast<std::int32_t>(random_below({.seed = 2}, i, kTokens));
    const bool early = i % kLength < 2;
    classes.as<std::int32_t>()[i] = early ? 0 : tokens.as<std::int32_t>()[i - 2];
    weights.as<float>()[i] = early ? 0.0F : 1.0F;
  }
  Dataset data;
  data.name = "echoes";
  data.inputs.push_back({"tokens", std::move(tokens), true});
  data.targets.push_back({"classes", std::move(classes), true});
  data.targets.push_back({"weights", std::move(weights), true});
  data.classes = kTokens;
  return data;
}

/// {7}: output 0 of layer 7. Without a list, a layer's input is the output of the layer before it.
ModelSpec model() {
  ModelSpec model;
  model.inputs = {{DType::I32, {kSamples, kPositions}, false}};
  model.layers = {{"embedding", {{"rows", kTokens}, {"columns", 32}}},
                  {"running_mean"},
                  {"linear", {{"out", 32}, {"activation", "gelu"}}},
                  {"add", {}, {{0}, {2}}},
                  {"layer_norm"},
                  {"linear", {{"out", 32}, {"activation", "gelu"}}},
                  {"add", {}, {{3}, {5}}},
                  {"linear", {{"out", kTokens}}}};
  return model;
}

std::string train(const Dataset& data, const std::string& executor, int ranks) {
  Trainer trainer(
      model(),
      {.schedule = "seq-1f1b", .shape = {.ranks = ranks, .micro_batches = 4, .slices = 3}},
      {.step = {.learning_rate = {.base = 1e-2}},
       .run = {.executor = executor},
       .fit = {.batch_size = 32, .epochs = 10}});
  const FitReport report = trainer.fit(data);
  if (ranks > 1)
    std::cout << "loss " << std::fixed << std::setprecision(1) << report.epochs.front().mean_loss()
              << " at first, " << report.epochs.back().mean_loss() << " at last\n";
  return trainer.weights_hash();
}

}  // namespace

int main() {
  const Dataset data = echoes();
  const std::string pipeline = train(data, "flow-graph", 4);
  const std::string alone = train(data, "sequential", 1);
  std::cout << (pipeline == alone ? "the weights of one rank\n" : "other weights than one rank\n");
  return pipeline == alone ? 0 : 1;
}
