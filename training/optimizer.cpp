// The built-in optimizers. Loops are plain and independent per element, so that the compiler makes
// vectors of them; scalars that depend on the update's number are computed once, in double.
#include "millrace/training/optimizer.hpp"

#include <array>
#include <cmath>

#include "millrace/core/error.hpp"

namespace millrace {
namespace {

struct NamedKind {
  std::string_view name;
  OptimizerKind kind;
};

constexpr std::array<NamedKind, 4> kKinds = {{{"sgd", OptimizerKind::Sgd},
                                              {"momentum", OptimizerKind::Momentum},
                                              {"adam", OptimizerKind::Adam},
                                              {"adamw", OptimizerKind::AdamW}}};

float decay_of(const UpdateSettings& settings, double weight_decay) {
  return settings.decays ? static_cast<float>(weight_decay) : 0.0F;
}

class Sgd final : public Optimizer {
 public:
  explicit Sgd(const OptimizerOptions& options) : options_(options) {}

  [[nodiscard]] int slots() const override { return 0; }
  [[nodiscard]] std::string_view slot_name(int) const override { return ""; }

  void update(const UpdateSettings& settings,
              std::span<float> value,
              std::span<const float> gradient,
              std::span<const std::span<float>>) const override {
    const auto rate = static_cast<float>(settings.learning_rate);
    const auto factor = static_cast<float>(settings.gradient_factor);
    const float decay = decay_of(settings, options_.weight_decay);
    float* w = value.data();
    const float* g = gradient.data();
    for (std::size_t i = 0; i < value.size(); ++i) w[i] -= rate * (factor * g[i] + decay * w[i]);
  }

 private:
  OptimizerOptions options_;
};

class Momentum final : public Optimizer {
 public:
  explicit Momentum(const OptimizerOptions& options) : options_(options) {}

  [[nodiscard]] int slots() const override { return 1; }
  [[nodiscard]] std::string_view slot_name(int) const override { return "momentum"; }

  void update(const UpdateSettings& settings,
              std::span<float> value,
              std::span<const float> gradient,
              std::span<const std::span<float>> state) const override {
    const auto rate = static_cast<float>(settings.learning_rate);
    const auto factor = static_cast<float>(settings.gradient_factor);
    const auto mu = static_cast<float>(options_.momentum);
    const float decay = decay_of(settings, options_.weight_decay);
    float* __restrict__ w = value.data();
    const float* __restrict__ g = gradient.data();
    float* __restrict__ v = state[0].data();
    for (std::size_t i = 0; i < value.size(); ++i) {
      v[i] = mu * v[i] + (factor * g[i] + decay * w[i]);
      w[i] -= rate * v[i];
    }
  }

 private:
  OptimizerOptions options_;
};

/// Adam and AdamW differ only in where the weight decay enters.
class Adam final : public Optimizer {
 public:
  explicit Adam(const OptimizerOptions& options) : options_(options) {}

  [[nodiscard]] int slots() const override { return 2; }
  [[nodiscard]] std::string_view slot_name(int slot) const override {
    return slot == 0 ? "first_moment" : "second_moment";
  }

  void update(const UpdateSettings& settings,
              std::span<float> value,
              std::span<const float> gradient,
              std::span<const std::span<float>> state) const override {
    const bool decoupled = options_.kind == OptimizerKind::AdamW;
    const double decay = settings.decays ? options_.weight_decay : 0.0;
    const auto t = static_cast<double>(settings.number);
    const auto coupled_decay = static_cast<float>(decoupled ? 0.0 : decay);
    const auto shrink = static_cast<float>(decoupled ? 1.0 - settings.learning_rate * decay : 1.0);
    const auto step =
        static_cast<float>(settings.learning_rate / (1.0 - std::pow(options_.beta1, t)));
    const auto unbias = static_cast<float>(1.0 / (1.0 - std::pow(options_.beta2, t)));
    const auto factor = static_cast<float>(settings.gradient_factor);
    const auto b1 = static_cast<float>(options_.beta1);
    const auto b2 = static_cast<float>(options_.beta2);
    const auto rest1 = static_cast<float>(1.0 - options_.beta1);
    const auto rest2 = static_cast<float>(1.0 - options_.beta2);
    const auto epsilon = static_cast<float>(options_.epsilon);
    float* __restrict__ w = value.data();
    const float* __restrict__ gradients = gradient.data();
    float* __restrict__ first = state[0].data();
    float* __restrict__ second = state[1].data();
    for (std::size_t i = 0; i < value.size(); ++i) {
      const float g = factor * gradients[i] + coupled_decay * w[i];
      first[i] = b1 * first[i] + rest1 * g;
      second[i] = b2 * second[i] + rest2 * (g * g);
      w[i] = shrink * w[i] - step * first[i] / (std::sqrt(unbias * second[i]) + epsilon);
    }
  }

 private:
  OptimizerOptions options_;
};

void require_fraction(double value, const std::string& what) {
  require(value >= 0 && value < 1,
          what + " must be at least 0 and below 1, got " + std::to_string(value));
}

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options) {
  require_fraction(options.momentum, "momentum");
  require_fraction(options.beta1, "beta1");
  require_fraction(options.beta2, "beta2");
  require(options.epsilon > 0, "epsilon must be above 0, got " + std::to_string(options.epsilon));
  require(options.weight_decay >= 0 && std::isfinite(options.weight_decay),
          "weight decay must be at least 0, got " + std::to_string(options.weight_decay));
  switch (options.kind) {
    case OptimizerKind::Sgd:
      return std::make_unique<Sgd>(options);
    case OptimizerKind::Momentum:
      return std::make_unique<Momentum>(options);
    case OptimizerKind::Adam:
    case OptimizerKind::AdamW:
      return std::make_unique<Adam>(options);
  }
  throw InvalidArgument("unknown kind of optimizer");
}

std::string_view name_of(OptimizerKind kind) {
  for (const NamedKind& known : kKinds)
    if (known.kind == kind) return known.name;
  return "?";
}

OptimizerKind optimizer_kind(std::string_view name) {
  for (const NamedKind& known : kKinds)
    if (known.name == name) return known.kind;
  std::string known;
  for (const NamedKind& kind : kKinds)
    known += (known.empty() ? "" : ", ") + std::string(kind.name);
  throw InvalidArgument("unknown optimizer '" + std::string(name) + "'; known are " + known);
}

}  // namespace millrace
