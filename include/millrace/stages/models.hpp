// Built-in models as data: a text names a list of layers with global numbers, and any cut of that
// list into stages computes the same bits.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/stages/activation.hpp"
#include "millrace/stages/layer.hpp"
#include "millrace/stages/loss.hpp"
#include "millrace/stages/module.hpp"

namespace millrace {

enum class LayerKind : std::uint8_t { Linear, Activation, LayerNorm, Dropout };

/// One layer of a model; its place in ModelSpec::layers is its global number N ("layers.N").
struct LayerSpec {
  LayerKind kind = LayerKind::Linear;
  std::int64_t in = 0;
  std::int64_t out = 0;                      ///< equals `in` except for Linear
  Activation activation = Activation::None;  ///< of Linear and Activation
  double rate = 0;                           ///< of Dropout: share of elements set to zero
};

enum class LossKind : std::uint8_t { SoftmaxCrossEntropy, MeanSquaredError };

/// A whole model. Thread-safety: a value.
struct ModelSpec {
  std::string text;  ///< what it was parsed from, for messages and manifests
  std::vector<LayerSpec> layers;
  LossKind loss = LossKind::SoftmaxCrossEntropy;
  DType dtype = DType::F32;

  [[nodiscard]] int layer_count() const { return static_cast<int>(layers.size()); }
  [[nodiscard]] std::int64_t input_columns() const { return layers.front().in; }
  [[nodiscard]] std::int64_t output_columns() const { return layers.back().out; }
};

/// Reads "mlp:64-96-10[,relu|gelu|tanh][,norm][,dropout=0.1]": linear layers 64->96->10, each but
/// the last with the activation (relu unless given). `norm` puts a layer norm before every linear
/// layer but the first; `dropout` puts a dropout layer behind every linear layer but the last.
/// Throws InvalidArgument naming what was given and the form allowed.
[[nodiscard]] ModelSpec parse_model(std::string_view text);

/// One layer with zero parameters. Throws InvalidArgument on sizes or rates out of range.
[[nodiscard]] std::unique_ptr<Layer> build_layer(const LayerSpec& spec,
                                                 std::uint32_t number,
                                                 DType dtype);

[[nodiscard]] std::unique_ptr<Loss> build_loss(LossKind kind);

/// Layers [boundaries[s], boundaries[s+1]) as stage s, for every s, initialised by `seed`. Bits of
/// the parameters do not depend on the boundaries. Throws InvalidArgument unless boundaries run
/// strictly upwards from 0 to the number of layers (partition.hpp makes such lists).
///
///     const ModelSpec model = parse_model("mlp:64-96-96-10");
///     auto stages = build_stages(model, even_boundaries(model.layer_count(), 2), /*seed=*/1);
[[nodiscard]] std::vector<std::unique_ptr<StageModule>> build_stages(
    const ModelSpec& model, std::span<const int> boundaries, std::uint64_t seed);

/// Stage s alone, for a process that hosts only some of them.
[[nodiscard]] std::unique_ptr<StageModule> build_stage(const ModelSpec& model,
                                                       std::span<const int> boundaries,
                                                       int stage,
                                                       std::uint64_t seed);

}  // namespace millrace
