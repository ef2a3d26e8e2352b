// Dropout whose mask is a pure function of (seed, step, sample, layer, column).
#pragma once

#include <cstdint>
#include <string>

#include "millrace/stages/layer.hpp"

namespace millrace {

/// y = x k / (1 - rate) with k = 0 for a share `rate` of the elements and 1 elsewhere; x, y [rows,
/// columns]. Identity in evaluation. Srivastava et al., JMLR 15 (2014), in its inverted form.
///
/// The element (row, column) draws word `column` of context.key(Purpose::Dropout, row, layer), so
/// the mask depends neither on micro-batches nor on stages, and a recompute draws it again.
/// F keeps k, a byte per element; I: dx = dy k / (1 - rate). No weights.
/// Thread-safety: externally synchronised.
class Dropout final : public Layer {
 public:
  struct Settings {
    std::int64_t columns = 0;
    double rate = 0;
    DType dtype = DType::F32;
    std::uint32_t layer = 0;  ///< global number: keys the mask
  };

  /// Throws InvalidArgument unless columns >= 1, 0 <= rate < 1 and the dtype is f32 or f64.
  explicit Dropout(const Settings& settings);

  Tensor forward(const PassContext& context, Tensor input, Stash& stash) override;
  Tensor backward_input(const PassContext& context,
                        Tensor output_gradient,
                        Stash& stash,
                        bool needs_input_gradient) override;

  [[nodiscard]] DType dtype() const override { return settings_.dtype; }
  [[nodiscard]] std::int64_t input_columns() const override { return settings_.columns; }
  [[nodiscard]] std::int64_t output_columns() const override { return settings_.columns; }
  [[nodiscard]] std::size_t bytes_after_forward(std::int64_t rows) const override;
  [[nodiscard]] std::size_t bytes_after_input(std::int64_t) const override { return 0; }
  [[nodiscard]] std::string describe() const override;

 private:
  Settings settings_;
};

}  // namespace millrace
