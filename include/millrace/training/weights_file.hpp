// Weights that a training begins with: from a safetensors file or its shards, in any precision that
// f32 holds.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "millrace/training/state.hpp"

namespace millrace {

/// What load_weights changed on the way.
struct WeightsReport {
  /// Tensors that became f32, by their type in the file: "BF16", "F16", "F64".
  std::map<std::string, std::int64_t> converted = {};
};

/// Writes every parameter of the model from `path`: a safetensors file, a
/// `*.safetensors.index.json` whose `weight_map` names the shard of every tensor, or a folder with
/// `model.safetensors` or its index. bf16 and f16 are widened to f32, exactly; f64 is rounded where
/// `narrow_weights` says so. In every process alike; each writes the parameters that it hosts.
///
/// Throws StorageError when a file cannot be read, DataError when one is damaged or a tensor has a
/// value that is not finite, Mismatch when the parameters or shapes are not those of the model, and
/// InvalidArgument for f64 without `narrow_weights`. Parameters before the fault are written.
/// Cost: O(bytes), memory of the largest shard.
WeightsReport load_weights(TrainingState& state,
                           const std::string& path,
                           bool narrow_weights = false);

}  // namespace millrace
