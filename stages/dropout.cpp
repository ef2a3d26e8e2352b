// Dropout: a mask drawn by counter, kept as bytes.
#include "millrace/stages/dropout.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "millrace/core/random.hpp"
#include "stages/check.hpp"
#include "stages/precision.hpp"

namespace millrace {
namespace {

/// Writes 1 where the word is at or above the threshold: a share 1 - threshold / 2^32 of them.
void draw_row(const RandomKey& key,
              std::uint64_t threshold,
              std::int64_t columns,
              std::uint8_t* mask) {
  for (std::int64_t j = 0; j < columns; j += 4) {
    const auto words = random_block(key, static_cast<std::uint32_t>(j / 4));
    const auto count = static_cast<std::size_t>(std::min<std::int64_t>(4, columns - j));
    for (std::size_t k = 0; k < count; ++k)
      mask[j + static_cast<std::int64_t>(k)] = words[k] >= threshold ? 1 : 0;
  }
}

template <class T>
void apply(const T* from, const std::uint8_t* mask, T scale, std::int64_t elements, T* to) {
  for (std::int64_t i = 0; i < elements; ++i) to[i] = mask[i] == 0 ? T(0) : from[i] * scale;
}

}  // namespace

Dropout::Dropout(const Settings& settings) : settings_(settings) {
  detail::require_float(settings.dtype, describe());
  require(settings.columns >= 1, describe() + ": dropout needs at least 1 column");
  require(settings.rate >= 0 && settings.rate < 1,
          describe() + ": the rate must be from 0 to below 1");
}

Tensor Dropout::forward(const PassContext& context, Tensor input, Stash& stash) {
  detail::check_rows(*this, "input", input, settings_.columns);
  if (!context.training) return input;
  Tensor mask = context.make(DType::U8, {input.rows(), settings_.columns});
  Tensor output = context.make(settings_.dtype, input.dims());
  const auto threshold = static_cast<std::uint64_t>(std::ldexp(settings_.rate, 32));
  auto* kept = detail::values<std::uint8_t>(mask);
  for (std::int64_t i = 0; i < input.rows(); ++i)
    draw_row(context.key(Purpose::Dropout, static_cast<std::uint32_t>(i), settings_.layer),
             threshold,
             settings_.columns,
             kept + i * settings_.columns);
  detail::with_precision(settings_.dtype, [&](auto zero) {
    using T = decltype(zero);
    apply<T>(detail::values<T>(input),
             kept,
             T(1 / (1 - settings_.rate)),
             input.elements(),
             detail::values<T>(output));
  });
  stash.keep(context, std::move(mask));
  return output;
}

Tensor Dropout::backward_input(const PassContext& context,
                               Tensor output_gradient,
                               Stash& stash,
                               bool needs_input_gradient) {
  detail::check_rows(*this, "output gradient", output_gradient, settings_.columns);
  if (needs_input_gradient)
    detail::with_precision(settings_.dtype, [&](auto zero) {
      using T = decltype(zero);
      T* gradient = detail::values<T>(output_gradient);
      apply<T>(gradient,
               detail::values<std::uint8_t>(stash[0]),
               T(1 / (1 - settings_.rate)),
               output_gradient.elements(),
               gradient);
    });
  stash.clear(context);
  return needs_input_gradient ? std::move(output_gradient) : Tensor();
}

std::size_t Dropout::bytes_after_forward(std::int64_t rows) const {
  return static_cast<std::size_t>(rows * settings_.columns);
}

std::string Dropout::describe() const {
  return "layers." + std::to_string(settings_.layer) + ": dropout " +
         std::to_string(settings_.rate) + " of " + std::to_string(settings_.columns);
}

}  // namespace millrace
