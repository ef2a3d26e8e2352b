// Rows of a table by number: how token ids become vectors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/stages/layer.hpp"

namespace millrace {

/// y[..., :] = W[x[...], :] with x i32 ids in [0, rows), W [rows, columns], y [..., columns].
///
/// F keeps x; I keeps dy beside it, and gives no gradient: ids have none; W: dW[x[i], :] += dy[i,
/// :] in the order of i. Cost: one row copied or added per id. Thread-safety: externally
/// synchronised.
class Embedding final : public Layer {
 public:
  struct Settings {
    std::int64_t rows = 0;
    std::int64_t columns = 0;
    DType dtype = DType::F32;
    std::uint32_t layer = 0;  ///< global number: names the table and keys its first values
  };

  /// Parameter "layers.N.weight", without memory until `initialize`. Throws InvalidArgument when
  /// rows or columns < 1 or the dtype is neither f32 nor f64.
  explicit Embedding(const Settings& settings);

  [[nodiscard]] std::vector<TensorType> infer(std::span<const TensorType> inputs) const override;
  TensorList forward(const PassContext& context, TensorList inputs, Stash& stash) override;
  TensorList backward_input(const PassContext& context,
                            TensorList output_gradients,
                            Stash& stash,
                            bool wanted) override;
  void backward_weight(const PassContext& context, Stash& stash) override;

  [[nodiscard]] std::vector<Parameter*> parameters() override { return {&weight_}; }
  /// Uniform in [-a, a] with a = sqrt(3 / columns): a row has an expected square length of 1.
  void initialize(std::uint64_t seed) override;
  [[nodiscard]] LayerBytes bytes(std::span<const TensorType> inputs) const override;
  [[nodiscard]] std::string describe() const override;

 private:
  Settings settings_;
  Parameter weight_;
};

}  // namespace millrace
