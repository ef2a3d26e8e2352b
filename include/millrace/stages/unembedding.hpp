// The head of a model over a vocabulary: a score for every row of a table.
#pragma once

#include <cstdint>
#include <string>

#include "millrace/stages/row_layer.hpp"

namespace millrace {

/// y = x W^T with x [rows, columns], W [words, columns], y [rows, words]: the scalar product of x
/// with every row of the table. W has the shape of an Embedding's table, so that the two can be
/// tied (Press and Wolf, arXiv 1608.05859).
///
/// F keeps x. I: dx = dy W, keeps x and dy; W: dW += dy^T x.
/// Cost: one product of 2 rows words columns operations per pass.
/// Thread-safety: externally synchronised.
class Unembedding final : public RowLayer {
 public:
  struct Settings {
    std::int64_t words = 0;
    std::int64_t columns = 0;
    DType dtype = DType::F32;
    std::uint32_t layer = 0;  ///< global number: names the parameter and keys its first values
  };

  /// Parameter "layers.N.weight", without memory until `initialize`. Throws InvalidArgument when
  /// words or columns are below 1 or the dtype is neither f32 nor f64.
  explicit Unembedding(const Settings& settings);

  Tensor forward_rows(const PassContext& context, Tensor input, Stash& stash) override;
  Tensor backward_rows(const PassContext& context,
                       Tensor output_gradient,
                       Stash& stash,
                       bool wanted) override;
  void backward_weight(const PassContext& context, Stash& stash) override;

  [[nodiscard]] std::vector<Parameter*> parameters() override { return {&weight_}; }
  /// Uniform in [-a, a] with a = sqrt(3 / columns), as an Embedding's.
  void initialize(std::uint64_t seed) override;

  [[nodiscard]] DType dtype() const override { return settings_.dtype; }
  [[nodiscard]] std::int64_t input_columns() const override { return settings_.columns; }
  [[nodiscard]] std::int64_t output_columns() const override { return settings_.words; }
  [[nodiscard]] std::size_t bytes_after_forward(std::int64_t rows) const override;
  [[nodiscard]] std::size_t bytes_after_input(std::int64_t rows) const override;
  [[nodiscard]] double operations(std::span<const TensorType> inputs) const override;
  [[nodiscard]] std::string describe() const override;

 private:
  Settings settings_;
  Parameter weight_;
};

}  // namespace millrace
