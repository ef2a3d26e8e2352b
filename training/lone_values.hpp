// Batch norms that see one value a channel of a micro-batch. Its variance is 0, so they give their
// bias, whatever comes in, and no gradient passes them.
#pragma once

#include <cstdint>
#include <string>

#include "millrace/stages/models.hpp"

namespace millrace {

/// Values a channel that a batch norm of the model sees of one sample, in slices of `slices`: the
/// fewest of any. 0: there is no batch norm, or the length of its sequences is not known.
[[nodiscard]] std::int64_t norm_values(const ModelSpec& model, int slices);

/// Throws InvalidParameter where each micro-batch that has samples gives a norm one value a
/// channel.
void refuse_lone_values(std::int64_t values, std::int64_t samples, int micro_batches);

/// Of a mini-batch in which some of the micro-batches do; empty where none does.
[[nodiscard]] std::string lone_values_warning(std::int64_t values,
                                              std::int64_t samples,
                                              int micro_batches);

}  // namespace millrace
