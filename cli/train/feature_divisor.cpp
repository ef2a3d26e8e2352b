// Files that cannot be read are left to the code that needs all of them, which says what is wrong.
#include "cli/train/feature_divisor.hpp"

#include "cli/numbers.hpp"
#include "millrace/core/error.hpp"
#include "millrace/training/file_system.hpp"
#include "millrace/training/safetensors.hpp"

namespace millrace::cli {

namespace {

std::string said_by_weights(const std::string& path) {
  try {
    FileSystem files;
    const Tensor contents = files.read(path, ~std::uint64_t{0});
    const Safetensors weights =
        read_safetensors({static_cast<const std::byte*>(contents.data()), contents.bytes()}, path);
    const auto found = weights.metadata.find(kFeatureDivisor);
    return found == weights.metadata.end() ? std::string() : found->second;
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

float divisor_of(const CheckpointFlags& flags) {
  const std::string text = flags.weights.empty() ? flags.divisor : said_by_weights(flags.weights);
  return text.empty() ? 0.0F : static_cast<float>(decimal(kFeatureDivisor, text, 0));
}

}  // namespace millrace::cli
