// The manifest as JSON. Reading is strict: every member is known, none is missing, and the last one
// is the hash of all.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <set>

#include <nlohmann/json.hpp>

#include "millrace/core/error.hpp"
#include "millrace/training/checkpoint.hpp"
#include "millrace/training/state.hpp"
#include "training/checkpoint/safetensors_types.hpp"
#include "training/checkpoint/shard_json.hpp"
#include "training/checkpoint/strict_json.hpp"

namespace millrace {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::string_view kFormat = "millrace checkpoint";
constexpr std::string_view kHash = "manifest_xxh3_128";
constexpr std::int64_t kMostCopies = 1'000'000;
constexpr std::int64_t kVersionOfPartial = 2;
constexpr std::int64_t kVersionOfValidation = 3;

/// All bits of a number that need not be finite: "0x1.8p+1", "inf".
std::string hex_text(double number) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%a", number);
  return text.data();
}

ordered_json json_of(const TrainingCounters& counters) {
  return {{"global_step", counters.global_step},
          {"mini_batches", counters.mini_batches},
          {"epoch", counters.position.epoch},
          {"batch", counters.position.batch},
          {"seed", counters.seed},
          {"skipped_in_a_row", counters.skipped_in_a_row},
          {"loss_scale", counters.loss_scale.value},
          {"finite_in_a_row", counters.loss_scale.finite_in_a_row},
          {"fit_global_step", counters.fit_global_step},
          {"fit_mini_batches", counters.fit_mini_batches}};
}

/// The range of micro-batches whose sums are saved; how many an update has, and in which order they
/// are added, the settings say.
ordered_json json_of(const PartialUpdate& partial) {
  return {{"first", 0},
          {"end", partial.micro_batches},
          {"copies", partial.copies},
          {"samples", partial.samples},
          {"loss", hex_text(partial.loss.sum)},
          {"loss_weight", hex_text(partial.loss.weight)},
          {"correct", partial.loss.correct},
          {"judged", partial.loss.evaluated}};
}

ordered_json json_of(const ValidationRecord& record) {
  return {{"step", record.step},
          {"metric", name_of(record.metric)},
          {"best_step", record.best_step},
          {"best", hex_text(record.best)},
          {"reference_step", record.reference_step},
          {"reference", hex_text(record.reference)},
          {"without_improvement", record.without_improvement},
          {"data", record.data}};
}

ordered_json json_of(const CheckpointTensor& tensor) {
  return {{"name", tensor.name},
          {"part", tensor.part},
          {"dtype", safetensors_name(tensor.dtype)},
          {"shape", std::vector<std::int64_t>(tensor.dims.begin(), tensor.dims.end())},
          {"xxh3_128", tensor.digest}};
}

/// An object all of whose members have to be asked for.
class Members {
 public:
  Members(const json& object, std::string what) : object_(object), what_(std::move(what)) {
    if (!object.is_object()) refuse("is not an object");
  }

  const json& operator[](const char* name) {
    const auto found = object_.find(name);
    if (found == object_.end()) refuse(std::string("has no '") + name + "'");
    ++asked_;
    return *found;
  }

  std::string text(const char* name) {
    const json& value = (*this)[name];
    if (!value.is_string()) refuse(std::string("has a '") + name + "' that is not a text");
    return value.get<std::string>();
  }

  std::uint64_t number(const char* name) {
    const json& value = (*this)[name];
    if (!value.is_number_unsigned())
      refuse(std::string("has a '") + name + "' that is not a whole number from 0");
    return value.get<std::uint64_t>();
  }

  std::int64_t count(const char* name) {
    const std::uint64_t value = number(name);
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      refuse(std::string("has a '") + name + "' that is too large");
    return static_cast<std::int64_t>(value);
  }

  double positive(const char* name) {
    const json& value = (*this)[name];
    if (!value.is_number() || !(value.get<double>() > 0))
      refuse(std::string("has a '") + name + "' that is not a number above 0");
    return value.get<double>();
  }

  /// As hex_text writes it.
  double real(const char* name) {
    const std::string digits = text(name);
    const double value = std::strtod(digits.c_str(), nullptr);
    if (hex_text(value) != digits) refuse(std::string("has a '") + name + "' that is no number");
    return value;
  }

  std::string digest(const char* name) {
    std::string value = text(name);
    if (value.size() != kSealDigits || value.find_first_not_of("0123456789abcdef") != value.npos)
      refuse(std::string("has a '") + name + "' that is no hash");
    return value;
  }

  /// To be called last.
  void require_no_more() const {
    if (asked_ != object_.size()) refuse("has a member that this version of the format has not");
  }

  [[noreturn]] void refuse(const std::string& sentence) const {
    throw DataError(what_ + " " + sentence);
  }

 private:
  const json& object_;
  std::string what_;
  std::size_t asked_ = 0;
};

TrainingCounters counters_of(const json& value, const std::string& what) {
  Members members(value, what);
  TrainingCounters counters;
  counters.global_step = members.count("global_step");
  counters.mini_batches = members.count("mini_batches");
  counters.position = {members.count("epoch"), members.count("batch")};
  counters.seed = members.number("seed");
  counters.skipped_in_a_row = members.count("skipped_in_a_row");
  counters.loss_scale = {members.positive("loss_scale"), members.count("finite_in_a_row")};
  counters.fit_global_step = members.count("fit_global_step");
  counters.fit_mini_batches = members.count("fit_mini_batches");
  members.require_no_more();
  return counters;
}

PartialUpdate partial_of(const json& value, const std::string& what) {
  Members members(value, what);
  PartialUpdate partial;
  if (members.count("first") != 0) members.refuse("does not begin with the first micro-batch");
  partial.micro_batches = members.count("end");
  partial.copies = members.count("copies");
  if (partial.micro_batches == 0 || partial.copies == 0 || partial.copies > kMostCopies)
    members.refuse("holds no sums");
  partial.samples = members.count("samples");
  partial.loss.sum = members.real("loss");
  partial.loss.weight = members.real("loss_weight");
  partial.loss.correct = members.count("correct");
  partial.loss.evaluated = members.count("judged");
  members.require_no_more();
  return partial;
}

ValidationRecord validation_of(const json& value, const std::string& what) {
  Members members(value, what);
  ValidationRecord record;
  record.step = members.count("step");
  const std::string metric = members.text("metric");
  if (metric == name_of(ValidationMetric::Accuracy)) record.metric = ValidationMetric::Accuracy;
  if (metric != name_of(record.metric)) members.refuse("has a metric that this version has not");
  record.best_step = members.count("best_step");
  record.best = members.real("best");
  record.reference_step = members.count("reference_step");
  record.reference = members.real("reference");
  record.without_improvement = members.count("without_improvement");
  record.data = members.text("data");
  members.require_no_more();
  return record;
}

CheckpointTensor tensor_of(const json& value, const std::string& what) {
  Members members(value, what + ": a tensor");
  CheckpointTensor tensor;
  tensor.name = members.text("name");
  tensor.part = members.text("part");
  const SafetensorsType* type = safetensors_type(members.text("dtype"));
  if (type == nullptr || !type->dtype) members.refuse("has a dtype that cannot be held");
  tensor.dtype = *type->dtype;
  const json& shape = members["shape"];
  if (!shape.is_array() || shape.size() > Dims::kMax) members.refuse("has no shape");
  std::vector<std::int64_t> extents;
  for (const json& extent : shape) {
    if (!extent.is_number_unsigned() || extent.get<std::uint64_t>() > std::uint64_t{1} << 40U)
      members.refuse("has an extent that is no number of elements");
    extents.push_back(extent.get<std::int64_t>());
  }
  tensor.dims = Dims(extents);
  tensor.digest = members.digest("xxh3_128");
  members.require_no_more();
  return tensor;
}

/// A name in the folder itself, and of nothing but a shard.
bool names_a_shard(const std::string& file) {
  constexpr std::string_view kSuffix = ".safetensors";
  const auto plain = [](char letter) {
    return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
           (letter >= '0' && letter <= '9') || letter == '.' || letter == '_' || letter == '-';
  };
  return file.size() > kSuffix.size() && file.size() <= 255 && file.ends_with(kSuffix) &&
         file.front() != '.' && std::ranges::all_of(file, plain);
}

CheckpointShard shard_of(const json& value, const std::string& what) {
  Members members(value, what + ": a shard");
  CheckpointShard shard;
  shard.file = members.text("file");
  if (!names_a_shard(shard.file)) members.refuse("has a file name that no shard has");
  shard.bytes = members.number("bytes");
  shard.digest = members.digest("xxh3_128");
  const json& tensors = members["tensors"];
  if (!tensors.is_array()) members.refuse("has no list of tensors");
  for (const json& tensor : tensors)
    shard.tensors.push_back(tensor_of(tensor, what + ": shard " + shard.file));
  members.require_no_more();
  return shard;
}

void refuse_repeated(const std::vector<CheckpointShard>& shards, const std::string& what) {
  std::set<std::string> files;
  std::set<std::pair<std::string, std::string>> tensors;
  for (const CheckpointShard& shard : shards) {
    if (!files.insert(shard.file).second)
      throw DataError(what + ": names shard " + shard.file + " twice");
    for (const CheckpointTensor& tensor : shard.tensors)
      if (!tensors.emplace(tensor.name, tensor.part).second)
        throw DataError(what + ": names the " + tensor.part + " of '" + tensor.name + "' twice");
  }
}

std::map<std::string, std::string> settings_of(const json& value, const std::string& what) {
  if (!value.is_object()) throw DataError(what + ": has settings that are not an object");
  std::map<std::string, std::string> settings;
  for (const auto& [name, setting] : value.items()) {
    if (!setting.is_string())
      throw DataError(what + ": has a setting '" + name + "' that is not a text");
    settings[name] = setting.get<std::string>();
  }
  return settings;
}

}  // namespace

std::string write_shards(const std::vector<CheckpointShard>& shards) {
  ordered_json list = ordered_json::array();
  for (const CheckpointShard& shard : shards) {
    ordered_json tensors = ordered_json::array();
    for (const CheckpointTensor& tensor : shard.tensors) tensors.push_back(json_of(tensor));
    list.push_back({{"file", shard.file},
                    {"bytes", shard.bytes},
                    {"xxh3_128", shard.digest},
                    {"tensors", std::move(tensors)}});
  }
  return list.dump(1);
}

std::vector<CheckpointShard> read_shards(std::string_view text, const std::string& what) {
  const json list = parse_strictly(text, what);
  if (!list.is_array()) throw DataError(what + ": has no list of shards");
  std::vector<CheckpointShard> shards;
  for (const json& shard : list) shards.push_back(shard_of(shard, what));
  return shards;
}

std::string write_manifest(const Manifest& manifest) {
  try {
    const bool is_partial = manifest.counters.partial.micro_batches > 0;
    const bool validates = !manifest.counters.validation.data.empty();
    const std::int64_t version = validates    ? kVersionOfValidation
                                 : is_partial ? kVersionOfPartial
                                              : 1;
    ordered_json document = {{"format", kFormat},
                             {"version", version},
                             {"model", manifest.model},
                             {"precision", manifest.precision},
                             {"optimizer", manifest.optimizer},
                             {"data", manifest.data},
                             {"counters", json_of(manifest.counters)}};
    if (is_partial) document["accumulation"] = json_of(manifest.counters.partial);
    if (validates) document["validation"] = json_of(manifest.counters.validation);
    document["settings"] = manifest.settings;
    document["shards"] = ordered_json::parse(write_shards(manifest.shards));
    return sealed(std::move(document), kHash);
  } catch (const json::exception&) {
    throw InvalidArgument("names and settings in a checkpoint must be UTF-8");
  }
}

Manifest read_manifest(std::string_view text, const std::string& file) {
  check_seal(text, file, "manifest");
  const json document = parse_strictly(text, file);
  Members members(document, file + ":");
  if (members.text("format") != kFormat) members.refuse("is no manifest of a checkpoint");
  const std::int64_t version = members.count("version");
  if (version < 1 || version > Manifest::kVersion)
    members.refuse("is of version " + std::to_string(version) +
                   " of the format; this program reads up to " +
                   std::to_string(Manifest::kVersion));
  Manifest manifest;
  manifest.model = members.text("model");
  manifest.precision = members.text("precision");
  manifest.optimizer = members.text("optimizer");
  manifest.data = members.text("data");
  manifest.counters = counters_of(members["counters"], file + ": counters");
  if (version == kVersionOfPartial ||
      (version == kVersionOfValidation && document.contains("accumulation")))
    manifest.counters.partial = partial_of(members["accumulation"], file + ": accumulation");
  if (version == kVersionOfValidation)
    manifest.counters.validation = validation_of(members["validation"], file + ": validation");
  manifest.settings = settings_of(members["settings"], file);
  const json& shards = members["shards"];
  if (!shards.is_array()) members.refuse("has no list of shards");
  for (const json& shard : shards) manifest.shards.push_back(shard_of(shard, file));
  members.digest(kHash.data());
  members.require_no_more();
  refuse_repeated(manifest.shards, file);
  return manifest;
}

}  // namespace millrace
