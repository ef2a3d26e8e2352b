// StageModule: consecutive layers, with the last stage's loss, as one stage of a pipeline.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "millrace/stages/layer.hpp"
#include "millrace/stages/loss.hpp"
#include "millrace/stages/stage.hpp"

namespace millrace {

/// A stage made of layers. Keeps one stash per (unit, layer), in places that `reserve` prepares, so
/// that a step in its steady state allocates nothing beyond the pool's blocks.
///
/// With `recompute_later` a forward keeps a copy of its input (the last stage: and the gradient of
/// its loss, which needs the targets) and `recompute` runs the layers again with the same random
/// keys. Inputs and output gradients that do not lie on 64-byte boundaries are copied to memory
/// that does, so that bits do not depend on where a caller's data lies. Thread-safety: externally
/// synchronised.
class StageModule final : public StageBody {
 public:
  struct Settings {
    bool first = false;          ///< stage 0: nobody wants the gradient of its inputs
    std::unique_ptr<Loss> loss;  ///< of the last stage; null elsewhere
  };

  /// Throws InvalidArgument when there are no layers or neighbours do not fit (columns, dtype).
  StageModule(std::vector<std::unique_ptr<Layer>> layers, Settings settings);

  TensorList forward(const PassContext& context, TensorList inputs) override;
  TensorList backward_input(const PassContext& context, TensorList output_gradients) override;
  void backward_weight(const PassContext& context) override;
  void recompute(const PassContext& context) override;

  [[nodiscard]] std::vector<Parameter*> parameters() override;
  void reserve(int micro_batches, int slices) override;
  /// Exactly what a StashMeter counts for one unit: found by playing the passes layer by layer.
  [[nodiscard]] StashBytes stash_bytes(std::int64_t rows, bool recompute) const override;
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
    std::int64_t rows = 0;  // of the output
    Tensor input;           // with recompute: what the layers will be run on again
    Tensor loss_gradient;   // of the last stage
    std::vector<Stash> layers;
  };

  UnitStash& unit_of(const PassContext& context, State expected, const char* pass);
  Tensor run_layers(const PassContext& context, Tensor tensor, UnitStash& unit);
  Tensor add_loss(const PassContext& context, const Tensor& predictions) const;
  [[nodiscard]] static Tensor aligned(const PassContext& context, Tensor tensor);
  Tensor first_gradient(const PassContext& context, UnitStash& unit, TensorList gradients) const;

  std::vector<std::unique_ptr<Layer>> layers_;
  Settings settings_;
  int slices_ = 1;
  std::vector<UnitStash> units_;
};

}  // namespace millrace
