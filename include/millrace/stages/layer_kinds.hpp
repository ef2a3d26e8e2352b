// Layers by name: what a model lists, and the kinds that can be listed.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "millrace/stages/layer.hpp"

namespace millrace {

/// An elementwise function y = f(z).
/// - Relu: max(z, 0); the slope at 0 is 0.
/// - Gelu: the tanh form, z/2 (1 + tanh(sqrt(2/pi) (z + 0.044715 z^3))); Hendrycks and Gimpel,
///   "Gaussian Error Linear Units", arXiv 1606.08415, section 2.
/// - Tanh: tanh(z).
enum class Activation : std::uint8_t { None, Relu, Gelu, Tanh };

/// "none", "relu", "gelu", "tanh".
[[nodiscard]] const char* name_of(Activation activation);

/// The activation called `name`. Throws InvalidArgument that lists the known names.
[[nodiscard]] Activation activation(std::string_view name);

/// Settings of a layer: {{"out", 96}, {"activation", "relu"}}.
/// Thread-safety: a value.
class LayerSettings {
 public:
  using Value = std::variant<std::int64_t, double, std::string>;

  LayerSettings() = default;
  LayerSettings(std::initializer_list<std::pair<const std::string, Value>> values)
      : values_(values) {}

  void set(const std::string& name, Value value) { values_[name] = std::move(value); }

  /// The setting of that name. Without `otherwise` they throw InvalidArgument when it is absent;
  /// all throw when it is of another type (an integer is a number too).
  [[nodiscard]] std::int64_t integer(const std::string& name) const;
  [[nodiscard]] std::int64_t integer(const std::string& name, std::int64_t otherwise) const;
  [[nodiscard]] double number(const std::string& name) const;
  [[nodiscard]] double number(const std::string& name, double otherwise) const;
  [[nodiscard]] std::string word(const std::string& name, const std::string& otherwise) const;

  [[nodiscard]] const std::map<std::string, Value>& all() const { return values_; }

 private:
  [[nodiscard]] const Value* find(const std::string& name) const;

  std::map<std::string, Value> values_;
};

/// One kind of layer.
struct LayerKind {
  std::string name;
  std::vector<std::string> settings;  ///< those it knows
  /// The layer for inputs of these types, without memory for parameters until `initialize`. Throws
  /// InvalidArgument for settings out of range.
  std::function<std::unique_ptr<Layer>(
      const LayerSettings& settings, std::span<const TensorType> inputs, const LayerPlace& place)>
      make;
};

/// The built-in kinds, in alphabetical order.
[[nodiscard]] std::vector<LayerKind> layer_kinds();

/// The index of what a layer takes: an output of a layer before it, or an input of the model.
struct LayerValue {
  static constexpr int kModelInput = -1;

  int layer = kModelInput;
  int index = 0;  ///< which output of the layer, or which input of the model

  friend auto operator<=>(const LayerValue&, const LayerValue&) = default;
};

/// One layer of a model; its place in ModelSpec::layers is its global number N ("layers.N").
struct LayerSpec {
  std::string kind;
  LayerSettings settings = {};
  /// Empty: output 0 of the layer before, for the first layer input 0 of the model.
  std::vector<LayerValue> inputs = {};
  /// In a model of f16 or bf16, its parameters and what it keeps stay f32: for norms, embeddings.
  bool keep_f32 = false;
};

/// One layer for inputs of these types, its parameters without memory until `initialize`. `more`
/// are kinds of the caller's own. Throws InvalidArgument for an unknown kind or setting, naming the
/// nearest known one, for settings out of range and for inputs that the layer does not take.
[[nodiscard]] std::unique_ptr<Layer> build_layer(const LayerSpec& spec,
                                                 std::span<const TensorType> inputs,
                                                 const LayerPlace& place,
                                                 std::span<const LayerKind> more = {});

}  // namespace millrace
