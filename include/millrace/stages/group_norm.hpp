// Group normalisation over the pixels of groups of channels.
#pragma once

#include <cstdint>
#include <string>

#include "millrace/stages/row_layer.hpp"

namespace millrace {

/// y = h g + b with h = (x - mean) / sqrt(var + epsilon) per sample and group of channels; x
/// [samples, positions..., channels], channels last, weight g and bias b [channels] (initialised to
/// 1 and 0, not decayed). Mean and var (divided by the number of values) are over all positions and
/// the channels / groups channels of a group. Wu and He, "Group Normalization", arXiv 1803.08494,
/// equations 1, 2 and 7.
///
/// F keeps h and 1/sqrt(var + epsilon) [samples, groups]. With dh = dy g:
/// I: dx = (dh - mean(dh) - h mean(dh h)) / sqrt(var + epsilon), keeps h and dy instead;
/// W: dg += sums of dy h, db += sums of dy. Sums over positions are in double and in their order.
/// Thread-safety: externally synchronised.
class GroupNorm final : public RowLayer {
 public:
  struct Settings {
    Dims extents;  ///< of a sample, the last one its channels
    std::int64_t groups = 1;
    double epsilon = 1e-5;
    DType dtype = DType::F32;
    std::uint32_t layer = 0;  ///< global number: names the parameters
  };

  /// Throws InvalidArgument when an extent is below 1 or not known before there are data, groups do
  /// not divide the channels, epsilon <= 0 or the dtype is neither f32 nor f64.
  explicit GroupNorm(const Settings& settings);

  Tensor forward_rows(const PassContext& context, Tensor input, Stash& stash) override;
  Tensor backward_rows(const PassContext& context,
                       Tensor output_gradient,
                       Stash& stash,
                       bool wanted) override;
  void backward_weight(const PassContext& context, Stash& stash) override;

  [[nodiscard]] std::vector<Parameter*> parameters() override { return {&weight_, &bias_}; }
  void initialize(std::uint64_t seed) override;
  [[nodiscard]] DType dtype() const override { return settings_.dtype; }
  [[nodiscard]] std::int64_t input_columns() const override { return settings_.extents.elements(); }
  [[nodiscard]] std::int64_t output_columns() const override { return input_columns(); }
  [[nodiscard]] Dims input_extents() const override { return settings_.extents; }
  [[nodiscard]] Dims output_extents() const override { return settings_.extents; }
  [[nodiscard]] std::size_t bytes_after_forward(std::int64_t rows) const override;
  [[nodiscard]] std::size_t bytes_after_input(std::int64_t rows) const override;
  [[nodiscard]] std::string describe() const override;

 private:
  [[nodiscard]] std::int64_t channels() const;

  Settings settings_;
  Parameter weight_;
  Parameter bias_;
};

}  // namespace millrace
