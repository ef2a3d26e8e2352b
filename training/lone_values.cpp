// A norm of one value gives its bias: what counts is how many micro-batches have one sample.
#include "training/lone_values.hpp"

#include <algorithm>
#include <vector>

#include "millrace/core/error.hpp"
#include "millrace/training/loader.hpp"

namespace millrace {
namespace {

std::int64_t lone(std::int64_t values, std::int64_t samples, int micro_batches) {
  return values == 1 ? std::ranges::count(micro_batch_sizes(samples, micro_batches), 1) : 0;
}

bool has_positions(const TensorType& type) {
  return std::ranges::find(type.dims, kPositions) != type.dims.end();
}

}  // namespace

std::int64_t norm_values(const ModelSpec& model, int slices) {
  const auto types = infer_types(model);
  std::int64_t fewest = 0;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    const TensorType& type = types[i][0];
    if (model.layers[i].kind != "batch_norm" || (has_positions(type) && model.context == 0))
      continue;
    const Dims dims = sized(type, {1, std::max<std::int64_t>(1, model.context / slices)}).dims;
    std::int64_t values = 1;
    for (std::size_t k = 0; k + 1 < dims.size(); ++k) values *= dims[k];
    fewest = fewest == 0 ? values : std::min(fewest, values);
  }
  return fewest;
}

void refuse_lone_values(std::int64_t values, std::int64_t samples, int micro_batches) {
  if (samples > micro_batches || lone(values, samples, micro_batches) == 0) return;
  throw InvalidParameter(
      named("micro_batches") + ": " + std::to_string(samples) + " samples in " +
      std::to_string(micro_batches) +
      " micro-batches give batch norm one value a channel, whose variance is 0: the model would "
      "learn nothing; give micro-batches of at least 2 samples, or another norm");
}

std::string lone_values_warning(std::int64_t values, std::int64_t samples, int micro_batches) {
  const std::int64_t count = lone(values, samples, micro_batches);
  if (count == 0) return {};
  return "batch norm sees one value a channel in " + std::to_string(count) + " of the " +
         std::to_string(micro_batches) + " micro-batches of a mini-batch of " +
         std::to_string(samples) + " samples: their variance is 0, and they teach it nothing";
}

}  // namespace millrace
