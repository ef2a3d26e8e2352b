// Weights of any precision for a training to begin with; see weights_file.hpp.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <span>
#include <utility>

#include <nlohmann/json.hpp>

#include "millrace/core/error.hpp"
#include "millrace/stages/layer.hpp"
#include "millrace/training/checkpoint.hpp"
#include "training/checkpoint/strict_json.hpp"

namespace millrace {
namespace {

constexpr std::string_view kModel = "model.safetensors";
constexpr std::string_view kIndexEnd = ".index.json";

/// One file, and the tensors that an index says are in it.
struct Shard {
  std::string path;
  std::set<std::string> names = {};  ///< empty: all of the model, without an index
};

Shard shard_in(const std::string& index, const std::string& file) {
  if (file.empty() || file.find('/') != file.npos || file.starts_with("."))
    throw DataError(index + ": names the file '" + file + "', which is not one beside it");
  return {(std::filesystem::path(index).parent_path() / file).string()};
}

/// The files that an index names, with their tensors.
std::vector<Shard> shards_of(const std::string& index, FileSystem& files) {
  const Tensor bytes = files.read(index, kSafetensorsHeaderMost);
  const nlohmann::json document =
      parse_strictly({static_cast<const char*>(bytes.data()), bytes.bytes()}, index);
  const bool has_map = document.is_object() && document.contains("weight_map");
  if (!has_map || !document["weight_map"].is_object())
    throw DataError(index + ": has no weight_map");
  std::map<std::string, std::set<std::string>> names;
  for (const auto& [name, file] : document["weight_map"].items()) {
    if (!file.is_string()) throw DataError(index + ": '" + name + "' has no file");
    names[file.get<std::string>()].insert(name);
  }
  std::vector<Shard> shards;
  for (auto& [file, held] : names) {
    shards.push_back(shard_in(index, file));
    shards.back().names = std::move(held);
  }
  return shards;
}

std::vector<Shard> files_at(std::string path, FileSystem& files) {
  if (std::error_code ignored; std::filesystem::is_directory(path, ignored)) {
    path += "/" + std::string(kModel);
    if (!files.exists(path)) path += kIndexEnd;
  }
  if (path.ends_with(kIndexEnd)) return shards_of(path, files);
  return {{path}};
}

/// In f32; what is not a number that a step can compute with is found here, not after many steps.
Tensor f32_of(const SafetensorsEntry& entry, const std::string& path, bool narrow) {
  Tensor tensor = entry.tensor();
  if (is_narrow(tensor.dtype())) tensor = widened(PassContext(), tensor);
  if (tensor.dtype() == DType::F64) {
    if (!narrow)
      throw InvalidParameter(path + ": tensor '" + entry.name +
                             "' is F64, which f32 cannot hold; " + named("narrow_weights") +
                             " rounds it");
    const Tensor wide = std::exchange(tensor, Tensor(DType::F32, tensor.dims()));
    std::ranges::transform(wide.as<double>(), tensor.as<float>().begin(), [](double number) {
      return static_cast<float>(number);
    });
  }
  if (tensor.dtype() != DType::F32)
    throw Mismatch(path + ": tensor '" + entry.name + "' is " + entry.type +
                   "; expected F32, BF16, F16 or F64");
  const std::span<const float> numbers = std::as_const(tensor).as<float>();
  const auto at =
      std::ranges::find_if(numbers, [](float number) { return !std::isfinite(number); });
  if (at != numbers.end())
    throw DataError(path + ": tensor '" + entry.name + "' has " + std::to_string(*at) +
                    " at element " + std::to_string(at - numbers.begin()) +
                    "; a training needs finite weights");
  return tensor;
}

/// Writes what a training begins with, and keeps what is still missing.
class Loading {
 public:
  Loading(TrainingState& state, bool narrow)
      : state_(state), narrow_(narrow), missing_(state.names().begin(), state.names().end()) {}

  void take(const Shard& shard, FileSystem& files) {
    const Tensor bytes = files.read(shard.path, ~std::uint64_t{0});
    const Safetensors weights =
        read_safetensors({static_cast<const std::byte*>(bytes.data()), bytes.bytes()}, shard.path);
    for (const std::string& name : shard.names)
      if (weights.find(name) == nullptr)
        throw DataError(shard.path + ": has no '" + name + "', which the index says");
    for (const SafetensorsEntry& entry : weights.entries) take(entry, shard);
  }

  void require_all(const std::string& path) const {
    if (!missing_.empty())
      throw Mismatch(path + ": has no '" + *missing_.begin() + "', which the model has");
  }

  [[nodiscard]] WeightsReport report() const { return report_; }

 private:
  void take(const SafetensorsEntry& entry, const Shard& shard) {
    if (missing_.erase(entry.name) == 0)
      throw Mismatch(shard.path + ": has '" + entry.name + "', which the model has not" +
                     (shard.names.empty() ? "" : ", or another file has as well"));
    const Tensor values = f32_of(entry, shard.path, narrow_);
    if (entry.dtype() != DType::F32) ++report_.converted[entry.type];
    if (!state_.hosts(entry.name)) return;
    try {
      state_.write(entry.name, values);
    } catch (const InvalidArgument& error) {
      throw Mismatch(shard.path + ": " + error.what());
    }
  }

  TrainingState& state_;
  bool narrow_;
  std::set<std::string> missing_;
  WeightsReport report_;
};

}  // namespace

WeightsReport load_weights(TrainingState& state, const std::string& path, bool narrow_weights) {
  FileSystem files;
  Loading loading(state, narrow_weights);
  for (const Shard& shard : files_at(path, files)) loading.take(shard, files);
  loading.require_all(path);
  return loading.report();
}

}  // namespace millrace
