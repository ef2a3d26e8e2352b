// StageModule: consecutive layers, with the last stage's loss, as one stage of a pipeline.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/stages/layer.hpp"
#include "millrace/stages/loss.hpp"
#include "millrace/stages/stage.hpp"

namespace millrace {

/// Which tensor goes where inside a stage.
struct StageWiring {
  /// An output of one of the stage's layers, or an input of the stage.
  struct Source {
    static constexpr int kStageInput = -1;

    int layer = kStageInput;  ///< counted in the stage
    int index = 0;

    friend auto operator<=>(const Source&, const Source&) = default;
  };

  std::vector<TensorType> inputs;                 ///< of the stage
  std::vector<std::vector<Source>> layer_inputs;  ///< by layer; each source lies before it
  std::vector<Source> outputs;                    ///< of the stage, each source once
  /// By output: how many inputs of later stages it is; at least 1, for the last stage 1.
  std::vector<int> output_uses;
};

/// Layer after layer, one tensor each: the first takes `input`, the last gives the stage's output.
[[nodiscard]] StageWiring chain_wiring(const TensorType& input, std::size_t layers);

/// A stage made of layers. Keeps one stash per (unit, layer), in places that `reserve` prepares, so
/// that a step in its steady state allocates nothing beyond the pool's blocks.
///
/// A tensor that several layers use is read by all of them from one memory, and its gradient is the
/// sum of what they give back, ((g1 + g2) + g3)..., in ascending order of the using layers, in this
/// stage first and then in later ones (`takes_gradient_per_use`): so no cut of the model changes
/// bits. The stash meter counts such memory once for every layer that keeps it.
///
/// With `recompute_later` a forward keeps nothing of the layers in recompute segments (all layers,
/// unless said otherwise: one segment) but copies of what each segment is given; the last stage
/// also keeps the gradient of its loss, which needs the targets. `recompute` runs the last segment
/// again with the same random keys, and the backward each other one when it comes to it. Inputs and
/// output gradients that do not lie on 64-byte boundaries are copied to memory that does, so that
/// bits do not depend on where a caller's data lies.
///
/// Where oneDNN multiplies, a pass blocks all signals of its thread but those of its own faults
/// (SEGV, BUS, FPE, ILL, TRAP, SYS); what comes meanwhile is delivered when the pass ends. Custom
/// layers run so, too; other stages do not. Thread-safety: externally synchronised.
class StageModule final : public StageBody {
 public:
  struct Settings {
    bool first = false;          ///< stage 0: its inputs need no gradient
    std::unique_ptr<Loss> loss;  ///< of the last stage, over its one output; null elsewhere
    /// f32, or f16 or bf16: what every tensor between layers is rounded to, those that come in
    /// included; what leaves the stage, but for the last one, and what it keeps has this dtype.
    DType precision = DType::F32;
  };

  /// Throws InvalidArgument when there are no layers, a layer does not take what the wiring gives
  /// it, or no layer uses an output of a layer.
  StageModule(std::vector<std::unique_ptr<Layer>> layers, StageWiring wiring, Settings settings);
  StageModule(const StageModule&) = delete;
  StageModule& operator=(const StageModule&) = delete;
  ~StageModule() override;

  /// Which layers a recompute runs again: by layer, ascending numbers from 0 for those in segments,
  /// consecutive layers each, and kKept for those that keep their stash. Between two steps. Throws
  /// InvalidArgument for another number of layers, and for segments that are not so.
  void recompute_in(std::vector<int> segment_of_layer);
  static constexpr int kKept = -1;

  TensorList forward(const PassContext& context, TensorList inputs) override;
  TensorList backward_input(const PassContext& context, TensorList output_gradients) override;
  void backward_weight(const PassContext& context) override;
  TensorList backward(const PassContext& context, TensorList output_gradients) override;
  void recompute(const PassContext& context) override;
  [[nodiscard]] bool takes_gradient_per_use() const override { return true; }

  [[nodiscard]] std::vector<Parameter*> parameters() override;
  /// As its loss says. Throws InvalidArgument for targets that do not have the loss's form.
  [[nodiscard]] std::optional<double> loss_weight(const TensorList& targets) const override;
  void update_statistics() override;
  void reserve(int micro_batches, int slices) override;
  /// Exactly what a StashMeter counts for one unit: found by playing the passes layer by layer.
  [[nodiscard]] StashBytes stash_bytes(const UnitSize& size, bool recompute) const override;
  [[nodiscard]] std::size_t stashed_units() const override;
  void abandon_step() noexcept override;

  /// The loss, or null when this is not the last stage.
  [[nodiscard]] const Loss* loss() const { return settings_.loss.get(); }
  [[nodiscard]] std::size_t layer_count() const { return layers_.size(); }
  [[nodiscard]] Layer& layer(std::size_t i) { return *layers_[i]; }
  [[nodiscard]] const Layer& layer(std::size_t i) const { return *layers_[i]; }
  /// One line per layer.
  [[nodiscard]] std::string describe() const;

 private:
  enum class State : std::uint8_t { Empty, InputKept, Forwarded, WeightOwed };

  struct UnitStash {
    State state = State::Empty;
    std::int64_t rows = 0;          // of the first output
    std::vector<TensorList> given;  // by segment: what its layers will be run on again
    std::size_t to_rebuild = 0;     // segments, from the first, not yet rebuilt
    Tensor loss_gradient;           // of the last stage
  };

  /// Consecutive layers that are run again together.
  struct Segment {
    std::size_t first = 0;
    std::size_t last = 0;             // after the last one
    std::vector<std::size_t> values;  // what they take from others, ascending
  };

  class Flow;

  [[nodiscard]] std::size_t place_of(const PassContext& context, const char* pass) const;
  std::size_t place_of(const PassContext& context, State expected, const char* pass);
  Stash& stash(std::size_t unit, std::size_t layer);
  void run_layers(const PassContext& context, TensorList inputs, std::size_t unit);
  void keep_given(const PassContext& context, UnitStash& unit, std::size_t from, std::size_t to);
  void rebuild(const PassContext& context, std::size_t place);
  [[nodiscard]] bool is_recomputed(const PassContext& context, std::size_t layer) const;
  [[nodiscard]] std::size_t kept_bytes(TensorType type, const UnitSize& size) const;
  [[nodiscard]] std::size_t given_bytes(const Segment& segment, const UnitSize& size) const;
  TensorList evaluate(const PassContext& context, TensorList inputs);
  [[nodiscard]] Tensor kept(const PassContext& context, Tensor tensor) const;
  [[nodiscard]] TensorList leaving(const PassContext& context, TensorList tensors) const;
  Tensor add_loss(const PassContext& context, const Tensor& predictions) const;
  void take_gradients(const PassContext& context, std::size_t place, TensorList gradients);

  std::vector<std::unique_ptr<Layer>> layers_;
  Settings settings_;
  std::unique_ptr<Flow> flow_;
  std::vector<int> segment_of_;  // by layer
  std::vector<Segment> segments_;
  int slices_ = 1;
  std::vector<UnitStash> units_;
  std::vector<Stash> stashes_;  // [micro_batch][layer][slice]
};

}  // namespace millrace
