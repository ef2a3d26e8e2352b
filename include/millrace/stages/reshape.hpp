// The same numbers with other extents: rows to images and back.
#pragma once

#include <cstdint>
#include <string>

#include "millrace/stages/row_layer.hpp"

namespace millrace {

/// y = x, every row [from...] taken as [to...] with as many numbers. Copies nothing, keeps nothing.
/// Thread-safety: externally synchronised.
class Reshape final : public RowLayer {
 public:
  struct Settings {
    Dims from;
    Dims to;
    DType dtype = DType::F32;
    std::uint32_t layer = 0;  ///< global number, for messages
  };

  /// Throws InvalidArgument when an extent is below 1, or the numbers are not as many.
  explicit Reshape(const Settings& settings);

  Tensor forward_rows(const PassContext&, Tensor input, Stash&) override { return input; }
  Tensor backward_rows(const PassContext&, Tensor output_gradient, Stash&, bool wanted) override {
    return wanted ? std::move(output_gradient) : Tensor();
  }

  [[nodiscard]] DType dtype() const override { return settings_.dtype; }
  [[nodiscard]] std::int64_t input_columns() const override { return settings_.from.elements(); }
  [[nodiscard]] std::int64_t output_columns() const override { return settings_.to.elements(); }
  [[nodiscard]] Dims input_extents() const override { return settings_.from; }
  [[nodiscard]] Dims output_extents() const override { return settings_.to; }
  [[nodiscard]] std::size_t bytes_after_forward(std::int64_t) const override { return 0; }
  [[nodiscard]] std::size_t bytes_after_input(std::int64_t) const override { return 0; }
  [[nodiscard]] std::string describe() const override;

 private:
  Settings settings_;
};

}  // namespace millrace
