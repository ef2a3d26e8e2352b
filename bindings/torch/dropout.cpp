// The mask as a tensor of factors, by which PyTorch multiplies, and so differentiates.
#include "millrace/torch/dropout.hpp"

#include <ATen/ATen.h>
#include <algorithm>
#include <cmath>
#include <string>

#include "millrace/core/error.hpp"
#include "millrace/core/random.hpp"
#include "millrace/torch/pass.hpp"

namespace millrace {
namespace {

/// Places [first, first + count) of one sample: `scale` where the word is at or above the
/// threshold.
void draw_factors(const RandomKey& key,
                  std::uint64_t threshold,
                  std::int64_t first,
                  std::int64_t count,
                  float scale,
                  float* factors) {
  for (std::int64_t j = first; j < first + count;) {
    const auto words = random_block(key, static_cast<std::uint32_t>(j / 4));
    const std::int64_t end = std::min(first + count, (j / 4 + 1) * 4);
    for (; j < end; ++j)
      factors[j - first] = words[static_cast<std::size_t>(j % 4)] >= threshold ? scale : 0.0F;
  }
}

}  // namespace

TorchDropoutImpl::TorchDropoutImpl(double rate, std::uint32_t layer) : rate_(rate), layer_(layer) {
  require(rate >= 0 && rate < 1, [&] {
    return "the rate of a dropout must be from 0 to below 1, got " + std::to_string(rate);
  });
}

at::Tensor TorchDropoutImpl::forward(const at::Tensor& x) {
  if (!is_training() || rate_ == 0) return x;
  const PassContext* pass = TorchPass::current();
  require(pass != nullptr,
          "TorchDropout draws numbers of a unit's pass: run it in a stage, or inside a TorchPass");
  require(x.dim() >= 2, "TorchDropout takes tensors of samples, [samples, ...]");
  at::Tensor factors = at::empty(x.sizes(), at::TensorOptions(at::kFloat));
  const std::int64_t places = x.size(0) == 0 ? 0 : x.numel() / x.size(0);
  const std::int64_t first = pass->first_position * (places / std::max<std::int64_t>(x.size(1), 1));
  const auto threshold = static_cast<std::uint64_t>(std::ldexp(rate_, 32));
  for (std::int64_t i = 0; i < x.size(0); ++i)
    draw_factors(pass->key(Purpose::Dropout, static_cast<std::uint32_t>(i), layer_),
                 threshold,
                 first,
                 places,
                 static_cast<float>(1 / (1 - rate_)),
                 factors.data_ptr<float>() + i * places);
  return x * factors.to(x.scalar_type());
}

}  // namespace millrace
