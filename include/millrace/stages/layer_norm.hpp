// Layer and RMS normalisation over the columns of each row.
#pragma once

#include <cstdint>
#include <string>

#include "millrace/stages/row_layer.hpp"

namespace millrace {

/// y = h g + b with h = (x - mean(x)) / sqrt(var(x) + epsilon) per row; x, y [rows, columns],
/// weight g and bias b [columns] (initialised to 1 and 0, not decayed). Ba, Kiros and Hinton,
/// "Layer Normalization", arXiv 1607.06450, equation 4; var divides by the number of columns.
///
/// F keeps h and 1/sqrt(var + epsilon) [rows]. With dh = dy g:
/// I: dx = (dh - mean(dh) - h mean(dh h)) / sqrt(var + epsilon), keeps h and dy instead;
/// W: dg += column sums of dy h, db += column sums of dy, in row order.
///
/// Not centred it is RMS norm: means of x and dh count as 0, and there is no bias, so that y =
/// x g / sqrt(mean(x^2) + epsilon). Zhang and Sennrich, "Root Mean Square Layer Normalization",
/// arXiv 1910.07467, equation 4.
/// Row sums run in a fixed order whatever the vector width.
/// Thread-safety: externally synchronised.
class LayerNorm final : public RowLayer {
 public:
  struct Settings {
    std::int64_t columns = 0;
    double epsilon = 1e-5;
    bool centred = true;  ///< false: RMS norm
    DType dtype = DType::F32;
    std::uint32_t layer = 0;  ///< global number: names the parameters
  };

  /// Throws InvalidArgument when columns < 1, epsilon <= 0 or the dtype is neither f32 nor f64.
  explicit LayerNorm(const Settings& settings);

  Tensor forward_rows(const PassContext& context, Tensor input, Stash& stash) override;
  Tensor backward_rows(const PassContext& context,
                       Tensor output_gradient,
                       Stash& stash,
                       bool wanted) override;
  void backward_weight(const PassContext& context, Stash& stash) override;

  [[nodiscard]] std::vector<Parameter*> parameters() override;
  void initialize(std::uint64_t seed) override;
  [[nodiscard]] DType dtype() const override { return settings_.dtype; }
  [[nodiscard]] std::int64_t input_columns() const override { return settings_.columns; }
  [[nodiscard]] std::int64_t output_columns() const override { return settings_.columns; }
  [[nodiscard]] std::size_t bytes_after_forward(std::int64_t rows) const override;
  [[nodiscard]] std::size_t bytes_after_input(std::int64_t rows) const override;
  [[nodiscard]] std::string describe() const override;

 private:
  Settings settings_;
  Parameter weight_;
  Parameter bias_;
};

}  // namespace millrace
