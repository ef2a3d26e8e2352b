// Dropout for modules of PyTorch, with random numbers that do not depend on who draws them when.
#pragma once

#include <cstdint>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

namespace millrace {

/// y = x k / (1 - rate) with k = 0 for a share `rate` of the elements and 1 elsewhere; identity in
/// evaluation. x: f32, f64, bf16 or f16 [samples, ...].
///
/// The mask is that of millrace's own Dropout: a pure function of (seed, step, sample, layer, place
/// in the sample), so it depends neither on schedule, cut or micro-batches, nor on other threads,
/// and a recompute draws it again. PyTorch's own torch::nn::Dropout draws from one generator for
/// the whole process.
///
///     model->push_back(millrace::TorchDropout(0.1, /*layer=*/4));
///
/// `layer` is a number of your own, another one for each dropout of the model. Throws
/// InvalidArgument unless 0 <= rate < 1; at a forward pass in training outside of a TorchPass, and
/// for a tensor without samples. Cost: 5 ns an element.
class TorchDropoutImpl final : public torch::nn::Module {
 public:
  TorchDropoutImpl(double rate, std::uint32_t layer);

  at::Tensor forward(const at::Tensor& x);

 private:
  double rate_;
  std::uint32_t layer_;
};
TORCH_MODULE(TorchDropout);

}  // namespace millrace
