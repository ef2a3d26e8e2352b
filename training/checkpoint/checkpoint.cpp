// Finding and reading checkpoints. Nothing of one is given out before all of it has been compared
// with its hashes.
#include "millrace/training/checkpoint.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <functional>
#include <limits>

#include "millrace/core/error.hpp"
#include "millrace/training/state.hpp"
#include "training/checkpoint/names.hpp"
#include "training/checkpoint/run_facts.hpp"
#include "training/checkpoint/safetensors_types.hpp"

namespace millrace {
namespace {

constexpr std::string_view kStep = "step-";
constexpr std::string_view kPlus = "-plus-";
constexpr std::size_t kStepDigits = 10;
constexpr std::uint64_t kManifestMost = std::uint64_t{1} << 30U;

FileSystem& local_files() {
  // Has no state: every thread may use it.
  static FileSystem files;
  return files;
}

std::span<const std::byte> bytes_of(const Tensor& file) {
  return {static_cast<const std::byte*>(file.data()), file.bytes()};
}

/// What cannot be read is damage to whoever wants to load it.
Tensor contents_of(FileSystem& files, const std::string& path, std::uint64_t most) {
  try {
    return files.read(path, most);
  } catch (const StorageError& error) {
    throw DataError(error.what());
  }
}

std::string digits_of(std::int64_t number) {
  const std::string digits = std::to_string(number);
  return std::string(digits.size() < kStepDigits ? kStepDigits - digits.size() : 0, '0') + digits;
}

std::string place_of(std::string_view name, std::string_view part) {
  return std::string(part) + "\n" + std::string(name);
}

/// Compares a tensor in a shard with what the manifest says of it.
void check(const SafetensorsEntry* found, const CheckpointTensor& wanted, const std::string& path) {
  const std::string what = path + ": tensor '" + tensor_key(wanted) + "' ";
  if (found == nullptr) throw DataError(what + "is missing");
  if (found->type != safetensors_name(wanted.dtype) ||
      !std::ranges::equal(found->extents, wanted.dims))
    throw DataError(what + "is not " + name_of(wanted.dtype) + " " + to_string(wanted.dims) +
                    ", as the manifest says");
  if (bytes_digest(found->bytes) != wanted.digest)
    throw DataError(what + "is damaged: its hash is " + bytes_digest(found->bytes) +
                    ", the manifest says " + wanted.digest);
}

}  // namespace

std::string folder_name(const Moment& moment) {
  const std::string name = std::string(kStep) + digits_of(moment.step);
  return moment.micro_batches == 0 ? name
                                   : name + std::string(kPlus) + digits_of(moment.micro_batches);
}

std::optional<Moment> moment_in(std::string_view name) {
  if (!name.starts_with(kStep)) return std::nullopt;
  Moment moment;
  const char* end = name.data() + name.size();
  const char* at = std::from_chars(name.data() + kStep.size(), end, moment.step).ptr;
  if (std::string_view(at, end).starts_with(kPlus))
    std::from_chars(at + kPlus.size(), end, moment.micro_batches);
  // Whatever else stands there is no name that this writes.
  if (folder_name(moment) != name) return std::nullopt;
  return moment;
}

std::string gradient_part(Replica copy) {
  return copy == Replica{0} ? "gradient" : "gradient." + std::to_string(copy.value);
}

std::string whole_path(const std::string& path) {
  std::string whole = std::filesystem::absolute(path).lexically_normal().string();
  while (whole.size() > 1 && whole.back() == '/') whole.pop_back();
  return whole;
}

std::string tensor_key(const CheckpointTensor& tensor) {
  return tensor.part == "value" ? tensor.name : tensor.name + "/" + tensor.part;
}

std::vector<CheckpointPlace> find_checkpoints(const std::string& root, FileSystem& files) {
  std::vector<CheckpointPlace> places;
  for (const std::string& name : files.list(root))
    if (const auto moment = moment_in(name);
        moment && files.exists(path_in(path_in(root, name), kManifestFile)))
      places.push_back({path_in(root, name), moment->step, moment->micro_batches});
  std::ranges::sort(places, std::greater<>(), [](const CheckpointPlace& place) {
    return Moment{place.step, place.micro_batches};
  });
  return places;
}

std::string best_named_in(const std::string& folder, FileSystem& files) {
  try {
    const std::int64_t step = read_manifest_of(folder, files).counters.validation.best_step;
    if (step == 0) return {};
    return path_in(folder.substr(0, folder.rfind('/')), folder_name({step, 0}));
  } catch (const DataError&) {
    return {};
  }
}

std::string resolve_best(const std::string& path, FileSystem& files) {
  const std::string end = path_in("", kBest);
  if (!path.ends_with(end) || files.exists(path)) return path;
  const std::string root = path.substr(0, path.size() - end.size());
  for (const CheckpointPlace& place : find_checkpoints(root, files)) {
    const std::string best = best_named_in(place.folder, files);
    if (!best.empty() && files.exists(path_in(best, kManifestFile))) return best;
  }
  throw DataError(root + ": has no best checkpoint; validations find one");
}

std::string resolve_best(const std::string& path) {
  return resolve_best(path, local_files());
}

std::vector<CheckpointPlace> find_checkpoints(const std::string& root) {
  return find_checkpoints(root, local_files());
}

Manifest read_manifest_of(const std::string& folder, FileSystem& files) {
  const std::string path = path_in(folder, kManifestFile);
  const Tensor text = contents_of(files, path, kManifestMost);
  return read_manifest({static_cast<const char*>(text.data()), text.bytes()}, path);
}

Manifest read_manifest_of(const std::string& folder) {
  return read_manifest_of(folder, local_files());
}

Checkpoint::Checkpoint(const std::string& folder, const Wanted& wanted, FileSystem& files)
    : folder_(folder), manifest_(read_manifest_of(folder, files)), run_(read_run(folder, files)) {
  for (const CheckpointShard& shard : manifest_.shards)
    if (!wanted || wanted(shard)) take(shard, files);
}

Checkpoint::Checkpoint(const std::string& folder, const Wanted& wanted)
    : Checkpoint(folder, wanted, local_files()) {}

/// The tensors come first, so that a message can name the one that is damaged.
void Checkpoint::take(const CheckpointShard& shard, FileSystem& files) {
  const std::string path = path_in(folder_, shard.file);
  const Tensor& file = files_.emplace_back(contents_of(files, path, shard.bytes));
  const std::span<const std::byte> bytes = bytes_of(file);
  const Safetensors read = read_safetensors(bytes, path);
  for (const CheckpointTensor& tensor : shard.tensors) {
    const SafetensorsEntry* found = read.find(tensor_key(tensor));
    check(found, tensor, path);
    entries_[place_of(tensor.name, tensor.part)] = *found;
  }
  if (bytes.size() != shard.bytes || bytes_digest(bytes) != shard.digest)
    throw DataError(path + ": is damaged: " + std::to_string(bytes.size()) + " bytes with hash " +
                    bytes_digest(bytes) + ", the manifest says " + std::to_string(shard.bytes) +
                    " with hash " + shard.digest);
}

const SafetensorsEntry* Checkpoint::find(std::string_view name, std::string_view part) const {
  const auto found = entries_.find(place_of(name, part));
  return found == entries_.end() ? nullptr : &found->second;
}

Tensor Checkpoint::read(std::string_view name, std::string_view part) const {
  const SafetensorsEntry* found = find(name, part);
  require(found != nullptr, [&] {
    return folder_ + ": has no " + std::string(part) + " of '" + std::string(name) + "'";
  });
  return found->tensor();
}

}  // namespace millrace
