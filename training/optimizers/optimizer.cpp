// The built-in optimizers by name, and one update of a whole parameter.
#include "millrace/training/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/names.hpp"
#include "training/optimizers/rules.hpp"

namespace millrace {
namespace {

/// Elements of one call of update: four arrays of them stay in the second cache, and what a call
/// computes once costs little beside them. A multiple of kNormBlock.
constexpr std::size_t kPart = 4 * kNormBlock;

constexpr Names<OptimizerKind, 7> kKinds = {"optimizer",
                                            {{{"sgd", OptimizerKind::Sgd},
                                              {"momentum", OptimizerKind::Momentum},
                                              {"nesterov", OptimizerKind::Nesterov},
                                              {"adam", OptimizerKind::Adam},
                                              {"adamw", OptimizerKind::AdamW},
                                              {"lamb", OptimizerKind::Lamb},
                                              {"lion", OptimizerKind::Lion}}}};

/// Calls `use(first, count, state of the part)` for the parts of n elements, ascending.
template <class Use>
void for_each_part(std::size_t n,
                   std::size_t length,
                   std::span<const std::span<float>> state,
                   Use use) {
  std::vector<std::span<float>> part(state.size());
  for (std::size_t first = 0; first < n; first += length) {
    const std::size_t count = std::min(length, n - first);
    for (std::size_t slot = 0; slot < state.size(); ++slot)
      part[slot] = state[slot].subspan(first, count);
    use(first, count, part);
  }
}

void require_fraction(double value, const std::string& what) {
  require(value >= 0 && value < 1,
          what + " must be at least 0 and below 1, got " + std::to_string(value));
}

}  // namespace

void Optimizer::prepare(const UpdateSettings& /*settings*/,
                        std::span<const float> /*value*/,
                        std::span<const float> /*gradient*/,
                        std::span<const std::span<float>> /*state*/,
                        std::span<double> /*sums*/) const {}

void prepare_blocks(const Optimizer& optimizer,
                    const UpdateSettings& settings,
                    std::span<const float> value,
                    std::span<const float> gradient,
                    std::span<const std::span<float>> state,
                    std::span<double> of_blocks) {
  const auto wanted = static_cast<std::size_t>(optimizer.sums());
  for_each_part(value.size(), kNormBlock, state, [&](auto first, auto count, const auto& slots) {
    const std::span<double> of_block = of_blocks.subspan(first / kNormBlock * wanted, wanted);
    std::ranges::fill(of_block, 0.0);
    optimizer.prepare(
        settings, value.subspan(first, count), gradient.subspan(first, count), slots, of_block);
  });
}

std::vector<double> sums_of_blocks(const Optimizer& optimizer, std::span<const double> of_blocks) {
  std::vector<double> sums(static_cast<std::size_t>(optimizer.sums()), 0.0);
  for (std::size_t i = 0; i < of_blocks.size(); ++i) sums[i % sums.size()] += of_blocks[i];
  return sums;
}

void apply_prepared(const Optimizer& optimizer,
                    const UpdateSettings& settings,
                    std::span<float> value,
                    std::span<float> gradient,
                    std::span<const std::span<float>> state) {
  for_each_part(value.size(), kPart, state, [&](auto first, auto count, const auto& slots) {
    const std::span<float> part = gradient.subspan(first, count);
    optimizer.update(settings, value.subspan(first, count), part, slots);
    std::ranges::fill(part, 0.0F);
  });
}

void apply(const Optimizer& optimizer,
           UpdateSettings settings,
           std::span<float> value,
           std::span<float> gradient,
           std::span<const std::span<float>> state) {
  std::vector<double> sums;
  if (optimizer.sums() > 0) {
    std::vector<double> of_blocks(blocks_of(value.size()) *
                                  static_cast<std::size_t>(optimizer.sums()));
    prepare_blocks(optimizer, settings, value, gradient, state, of_blocks);
    sums = sums_of_blocks(optimizer, of_blocks);
  }
  settings.sums = sums;
  apply_prepared(optimizer, settings, value, gradient, state);
}

OptimizerOptions optimizer_defaults(OptimizerKind kind) {
  OptimizerOptions options;
  options.kind = kind;
  if (kind == OptimizerKind::Lamb) options.epsilon = 1e-6;
  if (kind == OptimizerKind::Lion) options.beta2 = 0.99;
  return options;
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options) {
  require_fraction(options.momentum, "momentum");
  require_fraction(options.beta1, "beta1");
  require_fraction(options.beta2, "beta2");
  require(options.epsilon > 0, "epsilon must be above 0, got " + std::to_string(options.epsilon));
  require(options.weight_decay >= 0 && std::isfinite(options.weight_decay),
          "weight decay must be at least 0, got " + std::to_string(options.weight_decay));
  switch (options.kind) {
    case OptimizerKind::Sgd:
      return rules::sgd(options);
    case OptimizerKind::Momentum:
    case OptimizerKind::Nesterov:
      return rules::momentum(options);
    case OptimizerKind::Adam:
    case OptimizerKind::AdamW:
      return rules::adam(options);
    case OptimizerKind::Lamb:
      return rules::lamb(options);
    case OptimizerKind::Lion:
      return rules::lion(options);
  }
  throw InvalidArgument("unknown kind of optimizer");
}

std::string_view name_of(OptimizerKind kind) {
  return kKinds.of(kind);
}

std::span<const OptimizerKind> optimizer_kinds() {
  static constexpr auto kAll = kKinds.values();
  return kAll;
}

OptimizerKind optimizer_kind(std::string_view name) {
  return kKinds.value(name);
}

}  // namespace millrace
