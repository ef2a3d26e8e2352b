// SwiGLU: one half of a row gates the other.
#pragma once

#include <cstdint>
#include <string>

#include "millrace/stages/row_layer.hpp"

namespace millrace {

/// y = a / (1 + e^-a) b with a and b the first and second half of x; x [rows, 2 columns], y [rows,
/// columns]. Shazeer, "GLU Variants Improve Transformer", arXiv 2002.05202, equation 5, whose two
/// products are a linear layer before this one. F keeps x. With g = 1 / (1 + e^-a):
/// I: da = dy b g (1 + a (1 - g)), db = dy a g. No weights. Cost: one pass over the data each way.
/// Thread-safety: externally synchronised.
class SwiGlu final : public RowLayer {
 public:
  /// `name` is the global name, "layers.3"; `columns` those of y. Throws InvalidArgument when
  /// columns < 1 or the dtype is neither f32 nor f64.
  SwiGlu(std::string name, std::int64_t columns, DType dtype);

  Tensor forward_rows(const PassContext& context, Tensor input, Stash& stash) override;
  Tensor backward_rows(const PassContext& context,
                       Tensor output_gradient,
                       Stash& stash,
                       bool wanted) override;

  [[nodiscard]] DType dtype() const override { return dtype_; }
  [[nodiscard]] std::int64_t input_columns() const override { return 2 * columns_; }
  [[nodiscard]] std::int64_t output_columns() const override { return columns_; }
  [[nodiscard]] std::size_t bytes_after_forward(std::int64_t rows) const override;
  [[nodiscard]] std::size_t bytes_after_input(std::int64_t) const override { return 0; }
  [[nodiscard]] std::string describe() const override;

 private:
  std::string name_;
  std::int64_t columns_;
  DType dtype_;
};

}  // namespace millrace
