// Models as lists of layers with what each takes, their text form, and the stages that a cut makes
// of them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/stages/layer_kinds.hpp"
#include "millrace/stages/loss.hpp"
#include "millrace/stages/module.hpp"

namespace millrace {

enum class LossKind : std::uint8_t { SoftmaxCrossEntropy, MeanSquaredError };

/// A whole model. Thread-safety: a value.
///
///     ModelSpec model{.inputs = {{DType::I32, {kSamples, kPositions}, false}},
///                     .layers = {{"embedding", {{"rows", 100}, {"columns", 32}}},
///                                {"running_mean"},
///                                {"linear", {{"out", 32}}},
///                                {"add", {}, {{1}, {2}}},
///                                {"linear", {{"out", 100}}}}};
struct ModelSpec {
  std::string text = {};                  ///< what it was parsed from, for messages and manifests
  std::vector<TensorType> inputs = {};    ///< what every sample gives; none has a gradient
  std::vector<LayerSpec> layers = {};     ///< each takes what lies before it
  std::optional<LayerValue> output = {};  ///< read by the loss; output 0 of the last layer
  LossKind loss = LossKind::SoftmaxCrossEntropy;
  DType dtype = DType::F32;
  /// f32, or f16 or bf16 in a model of f32: every tensor between two layers, its gradient, what
  /// layers keep and the values of parameters are rounded to such numbers (stash and messages take
  /// half the memory); what happens inside a layer or a loss, and the sum of gradients, stays f32.
  /// Since the rounding is at every layer, no cut changes bits.
  DType precision = DType::F32;
  std::vector<LayerKind> kinds = {};  ///< custom kinds, added to the built-in ones
  /// Positions of the sequences that it is made for; 0: it takes no sequences, or of any length.
  std::int64_t context = 0;
  /// Parameters that are one weight, as StepOptions::tied.
  std::vector<std::vector<std::string>> tied = {};
  /// First layers of stages where even cuts are made, ascending: where little crosses. Empty:
  /// anywhere.
  std::vector<int> cut_points = {};

  [[nodiscard]] int layer_count() const { return static_cast<int>(layers.size()); }
  /// Last extents of the first input and of the output. Throw as `infer_types`.
  [[nodiscard]] std::int64_t input_columns() const;
  [[nodiscard]] std::int64_t output_columns() const;
};

/// Reads "mlp:64-96-10[,relu|gelu|tanh][,norm[=layer|rms|batch]][,residual][,dropout=0.1]": linear
/// layers 64->96->10, each but the last with the activation (relu unless given). `norm` puts a norm
/// (layer norm unless given) before every linear layer but the first; `dropout` puts a dropout
/// layer after every linear layer but the last; `residual` adds to what a linear layer between
/// equal widths gives (dropped out, if so) what came in before its norm, but for the first and the
/// last linear layer. Norms keep f32.
///
/// Reads "conv:8x8x1-16-32-10[,relu|gelu|tanh][,norm=batch|group|none][,dropout=0.1]": a residual
/// network over images of 8x8 pixels and 1 channel, channels last: a convolution to 16 channels, a
/// block of two convolutions of 16 channels and one of 32 (from the second block on with stride 2),
/// the mean over all pixels, and a linear layer to 10. Convolutions are 3x3, each with a norm
/// after it (batch norm with deferred statistics unless given); a block adds what came in, through
/// a 1x1 convolution where the shape changes, before its last activation. `dropout` is before the
/// linear layer.
///
/// Reads "gpt:layers=8,d=256,heads=8,context=128[,kv=N][,mlp=gelu|swiglu][,norm=layer|rms]
/// [,pos=learned|rotary][,tied=no|yes][,dropout=0.1][,vocabulary=N]": a decoder-only transformer
/// over sequences of up to 128 tokens below N (256 unless given): an embedding with positions, 8
/// blocks of causal attention (kv heads of keys and values, as many as heads unless given) and a
/// perceptron of width 4 d (swiglu: of 8 d / 3, rounded up to a multiple of 64), each after a norm
/// and added to what came in (pre-norm, Radford et al., 2019), a last norm and a head without bias,
/// tied to the embedding or not. Norms, embedding and positions keep f32.
/// Throws InvalidArgument naming what was given and the form allowed.
[[nodiscard]] ModelSpec parse_model(std::string_view text);

/// The types of all layers' outputs, by layer. Throws InvalidArgument naming the layer that does
/// not take what it is given, takes what does not lie before it, or has no kind. Cost: no
/// parameters are made.
[[nodiscard]] std::vector<std::vector<TensorType>> infer_types(const ModelSpec& model);

[[nodiscard]] std::unique_ptr<Loss> build_loss(LossKind kind);

/// Output `output` of stage `from` is input `input` of stage `to`.
struct CutEdge {
  int from = 0;
  int output = 0;
  int to = 0;
  int input = 0;

  friend bool operator==(const CutEdge&, const CutEdge&) = default;
};

/// What crosses the boundaries of a cut (see build_stages): an edge for every layer that uses what
/// a layer of an earlier stage gives, or an input of the model, which the first stage hands on. A
/// stage's inputs are numbered as its layers use them, its outputs as its layers give them. Empty
/// where every stage gives one tensor to one layer of the next and nothing else: a chain. Throws as
/// infer_types, and when a stage gives nothing or is given nothing.
[[nodiscard]] std::vector<CutEdge> cut_edges(const ModelSpec& model,
                                             std::span<const int> boundaries);

/// By stage: the types of its inputs as they travel, in the model's precision. Throws as cut_edges.
[[nodiscard]] std::vector<std::vector<TensorType>> stage_inputs(const ModelSpec& model,
                                                                std::span<const int> boundaries);

/// The cuts of partition.hpp, made at `model.cut_points` alone where those are enough for that many
/// stages. `seconds`: one for every layer.
[[nodiscard]] std::vector<int> even_boundaries(const ModelSpec& model, int stages);
[[nodiscard]] std::vector<int> balanced_boundaries(const ModelSpec& model,
                                                   std::span<const double> seconds,
                                                   int stages);

/// Layers [boundaries[s], boundaries[s+1]) as stage s, for every s, initialised by `seed`. Bits of
/// the parameters, and of what the stages compute, do not depend on the boundaries. Throws
/// InvalidArgument unless boundaries run strictly upwards from 0 to the number of layers
/// (partition.hpp makes such lists).
///
///     const ModelSpec model = parse_model("mlp:64-96-96-10");
///     auto stages = build_stages(model, even_boundaries(model, 2), /*seed=*/1);
[[nodiscard]] std::vector<std::unique_ptr<StageModule>> build_stages(
    const ModelSpec& model, std::span<const int> boundaries, std::uint64_t seed);

/// Stage s without memory for parameters, which cannot run: to ask what it takes, gives and
/// stashes.
[[nodiscard]] std::unique_ptr<StageModule> stage_without_parameters(const ModelSpec& model,
                                                                    std::span<const int> boundaries,
                                                                    int stage);

/// The names of all parameters, running statistics included, in the order of their layers. Cost: no
/// parameters are made.
[[nodiscard]] std::vector<std::string> parameter_names(const ModelSpec& model);

/// Stage s alone, for a process that hosts only some of them.
[[nodiscard]] std::unique_ptr<StageModule> build_stage(const ModelSpec& model,
                                                       std::span<const int> boundaries,
                                                       int stage,
                                                       std::uint64_t seed);

}  // namespace millrace
