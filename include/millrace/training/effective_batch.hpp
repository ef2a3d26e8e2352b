// How the samples of one update are shared out, and the arithmetic that says whether they fit.
#pragma once

#include <cstdint>
#include <string>

namespace millrace {

/// The effective batch: N samples per update in d K m micro-batches.
struct EffectiveBatch {
  std::int64_t samples = 0;        ///< N
  std::int64_t copies = 1;         ///< d, of the model, each with samples of its own
  std::int64_t passes = 1;         ///< K, of the pipeline, whose gradients accumulate
  std::int64_t micro_batches = 1;  ///< m, of one pass of one copy
};

/// What a person is told: "128 samples per update: 8 micro-batches of 16", "100 samples per update:
/// 2 copies x 8 micro-batches, 4 of 7 and 12 of 6". Throws InvalidArgument when a number is below
/// 1, or the micro-batches are more than 10^9.
[[nodiscard]] std::string to_string(const EffectiveBatch& batch);

/// d K m S, the samples per update with micro-batches of S samples each. Throws InvalidArgument
/// when a number is below 1, or the result above 10^9.
[[nodiscard]] std::int64_t samples_of(const EffectiveBatch& batch, std::int64_t micro_batch_size);

/// Throws InvalidParameter unless N = d K m S, naming the m with which N would fit or, where there
/// is none, the nearest N below and above with an m that fits. Else throws as samples_of.
void require_exact(const EffectiveBatch& batch, std::int64_t micro_batch_size);

}  // namespace millrace
