// Layers with a clock around their passes, for passes_bench.
#pragma once

#include <cstdint>
#include <ctime>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "millrace/stages/layer.hpp"

namespace bench {

using namespace millrace;

/// What no layer does itself.
inline constexpr const char* kBetween = "between layers: sums of gradients, rounding";

/// Seconds that the calling thread has had a processor.
inline double now() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// What one kind of pass takes in a step.
struct Pass {
  double operations = 0;
  double bytes = 0;  ///< that it has to read and write
  double seconds = 0;

  Pass& operator+=(const Pass& more) {
    operations += more.operations;
    bytes += more.bytes;
    seconds += more.seconds;
    return *this;
  }
};

using Passes = std::map<std::string, Pass>;

inline double bytes_of(const TensorList& tensors) {
  return static_cast<double>(tensors.bytes());
}

/// A layer with a clock around its passes.
class TimedLayer final : public Layer {
 public:
  /// `wanted`: it is asked for the gradient of its input. `rounds`: what is between layers is
  /// rounded.
  TimedLayer(
      std::unique_ptr<Layer> layer, std::string kind, bool wanted, bool rounds, Passes& passes)
      : layer_(std::move(layer)), kind_(std::move(kind)), rounds_(rounds), passes_(passes) {
    const std::string text = layer_->describe();
    name_ = text.substr(text.find(": ") + 2);
    passes_["F " + name_];
    if (wanted) passes_["I " + name_];
    if (!layer_->parameters().empty()) passes_["W " + name_];
  }

  [[nodiscard]] std::vector<TensorType> infer(std::span<const TensorType> inputs) const override {
    return layer_->infer(inputs);
  }

  TensorList forward(const PassContext& context, TensorList inputs, Stash& stash) override {
    std::vector<TensorType> types;
    for (std::size_t i = 0; i < inputs.size(); ++i)
      types.push_back({inputs[i].dtype(), inputs[i].dims()});
    operations_ = layer_->operations(types);
    const LayerBytes kept = layer_->bytes(types);
    after_forward_ = static_cast<double>(kept.after_forward);
    after_input_ = static_cast<double>(kept.after_input);
    in_ = bytes_of(inputs);
    const double began = now();
    TensorList outputs = layer_->forward(context, std::move(inputs), stash);
    const double seconds = now() - began;
    out_ = bytes_of(outputs);
    if (rounds_) passes_[kBetween].bytes += 2 * out_;
    passes_["F " + name_] += {operations_, in_ + out_ + parameter_bytes() + newly_kept(), seconds};
    return outputs;
  }

  TensorList backward_input(const PassContext& context,
                            TensorList output_gradients,
                            Stash& stash,
                            bool wanted) override {
    const double began = now();
    TensorList gradients =
        layer_->backward_input(context, std::move(output_gradients), stash, wanted);
    const double seconds = now() - began;
    if (wanted && rounds_) passes_[kBetween].bytes += 2 * bytes_of(gradients);
    if (wanted) passes_["I " + name_] += {operations_of_input(), bytes_of_input(), seconds};
    return gradients;
  }

  void backward_weight(const PassContext& context, Stash& stash) override {
    if (parameters().empty()) return layer_->backward_weight(context, stash);
    const double began = now();
    layer_->backward_weight(context, stash);
    passes_["W " + name_] += {operations_, after_input_ + 2 * parameter_bytes(), now() - began};
  }

  [[nodiscard]] std::vector<Parameter*> parameters() override { return layer_->parameters(); }
  void initialize(std::uint64_t seed) override { layer_->initialize(seed); }
  [[nodiscard]] LayerBytes bytes(std::span<const TensorType> inputs) const override {
    return layer_->bytes(inputs);
  }
  [[nodiscard]] std::string describe() const override { return layer_->describe(); }

 private:
  [[nodiscard]] double parameter_bytes() {
    double bytes = 0;
    for (const Parameter* parameter : layer_->parameters())
      bytes += static_cast<double>(parameter->value.bytes());
    return bytes;
  }

  /// Of what stays, that which was not there before.
  [[nodiscard]] double newly_kept() const {
    if (layer_->precision() != DType::F32 || kind_ == "layer_norm") return after_forward_;
    return kind_ == "linear" ? after_forward_ - in_ : 0;
  }

  [[nodiscard]] double operations_of_input() const {
    return kind_ == "attention" ? 2 * operations_ : operations_;
  }

  /// Gradients in and out, and what they are made with. A sum hands one gradient on twice, and
  /// positions keep what they hand on: a copy each.
  [[nodiscard]] double bytes_of_input() {
    if (kind_ == "add" || kind_ == "positions") return 2 * out_;
    if (kind_ == "linear" || kind_ == "unembedding") return out_ + in_ + parameter_bytes();
    return out_ + in_ + after_forward_;
  }

  std::unique_ptr<Layer> layer_;
  std::string kind_, name_;
  bool rounds_;
  Passes& passes_;
  double operations_ = 0, after_forward_ = 0, after_input_ = 0, in_ = 0, out_ = 0;
};

}  // namespace bench
