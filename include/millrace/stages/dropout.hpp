// Dropout whose mask is a pure function of (seed, step, sample, layer, place in the sample).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/stages/layer.hpp"

namespace millrace {

/// y = x k / (1 - rate) with k = 0 for a share `rate` of the elements and 1 elsewhere; x, y
/// [samples,
/// ...] or [samples, positions, ...]. Identity in evaluation. Srivastava et al., JMLR 15 (2014), in
/// its inverted form.
///
/// The element at place j of its sample (counted over all slices) draws word j of
/// context.key(Purpose::Dropout, sample, layer), so the mask depends neither on micro-batches nor
/// on slices nor on stages, and a recompute draws it again.
/// F keeps k, a byte per element; I: dx = dy k / (1 - rate). No weights.
/// Thread-safety: externally synchronised.
class Dropout final : public Layer {
 public:
  struct Settings {
    double rate = 0;
    DType dtype = DType::F32;
    std::uint32_t layer = 0;  ///< global number: keys the mask
  };

  /// Throws InvalidArgument unless 0 <= rate < 1 and the dtype is f32 or f64.
  explicit Dropout(const Settings& settings);

  [[nodiscard]] std::vector<TensorType> infer(std::span<const TensorType> inputs) const override;
  TensorList forward(const PassContext& context, TensorList inputs, Stash& stash) override;
  TensorList backward_input(const PassContext& context,
                            TensorList output_gradients,
                            Stash& stash,
                            bool wanted) override;

  [[nodiscard]] LayerBytes bytes(std::span<const TensorType> inputs) const override;
  [[nodiscard]] std::string describe() const override;

 private:
  [[nodiscard]] Tensor mask_for(const PassContext& context, const Tensor& input) const;

  Settings settings_;
};

}  // namespace millrace
