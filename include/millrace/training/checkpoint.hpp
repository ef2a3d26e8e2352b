// A checkpoint: the whole state of a training, as a folder of safetensors files and a manifest.
// Loads into any number of stages, ranks and processes; every byte of it is under a hash.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/training/file_system.hpp"
#include "millrace/training/safetensors.hpp"
#include "millrace/training/state.hpp"

namespace millrace {

/// A tensor of the state in a shard.
struct CheckpointTensor {
  std::string name;  ///< of the parameter, the same in every cut
  /// "value", or one of TrainingState::parts: "first_moment", ... In an unfinished update
  /// "gradient", the sums of the first copy of the model, "gradient.1", of the next, ...
  std::string part;
  DType dtype = DType::F32;
  Dims dims;
  std::string digest;  ///< of its bytes, see tensor_digest

  friend bool operator==(const CheckpointTensor&, const CheckpointTensor&) = default;
};

/// What the tensor is called inside its safetensors file: its name, and "/" and the part if that is
/// not the value.
[[nodiscard]] std::string tensor_key(const CheckpointTensor& tensor);

/// A safetensors file of the folder: the weights of one layer, or what the optimizer keeps of it,
/// or the sums that a copy of it holds in an unfinished update.
struct CheckpointShard {
  std::string file;  ///< in the folder
  std::uint64_t bytes = 0;
  std::string digest;                     ///< of the whole file
  std::vector<CheckpointTensor> tensors;  ///< by key

  friend bool operator==(const CheckpointShard&, const CheckpointShard&) = default;
};

/// What manifest.json says. Two trainings in the same state write the same bytes, however they are
/// cut; what depends on the run lies beside it, in run.json. Thread-safety: a value.
struct Manifest {
  /// Later versions go on reading this one and those before. Version 2 is that of a checkpoint
  /// inside an update; any other is of version 1, in the same bytes as ever.
  static constexpr std::int64_t kVersion = 2;

  // What has to be the same where the training goes on.
  std::string model;  ///< ModelSpec::text; empty: only its parameters are known
  std::string precision = "f32";
  std::string optimizer;  ///< "adamw", ...
  std::string data;       ///< contents_digest of the training data; empty: not known

  TrainingCounters counters;
  /// Everything else that decides bits, by the names of TrainerOptions.
  std::map<std::string, std::string> settings;
  std::vector<CheckpointShard> shards;  ///< by file

  friend bool operator==(const Manifest&, const Manifest&) = default;
};

/// JSON whose last member is the xxh3-128 of all of it, that member's own digits taken as zeros.
/// Throws InvalidArgument when a text in it is not UTF-8.
[[nodiscard]] std::string write_manifest(const Manifest& manifest);

/// Reads what write_manifest wrote, any version up to Manifest::kVersion. Throws DataError, with
/// `file`, for anything else: a wrong hash, a member missing, unknown or twice, names of files that
/// are paths, tensors named twice. No memory is taken for what the text merely claims.
[[nodiscard]] Manifest read_manifest(std::string_view text, const std::string& file);

/// A folder that may hold a checkpoint.
struct CheckpointPlace {
  std::string folder;
  std::int64_t step = 0;           ///< TrainingCounters::mini_batches, by the folder's name
  std::int64_t micro_batches = 0;  ///< of the next one, in an unfinished update

  friend bool operator==(const CheckpointPlace&, const CheckpointPlace&) = default;
};

/// The finished checkpoints in `root`, newest first; whether they are whole is not looked at. None
/// where there is no such folder. Throws StorageError.
[[nodiscard]] std::vector<CheckpointPlace> find_checkpoints(const std::string& root);
[[nodiscard]] std::vector<CheckpointPlace> find_checkpoints(const std::string& root,
                                                            FileSystem& files);

/// The manifest of the checkpoint in `folder`. Throws DataError naming the file, also when there is
/// none.
[[nodiscard]] Manifest read_manifest_of(const std::string& folder);
[[nodiscard]] Manifest read_manifest_of(const std::string& folder, FileSystem& files);

/// What its run.json tells of the run that wrote it. Throws DataError when it is missing or
/// damaged. Those of older versions have no hash.
[[nodiscard]] std::map<std::string, std::string> run_facts_of(const std::string& folder);

/// A checkpoint in memory, every byte of which was compared with its hash. Thread-safety:
/// immutable, share freely.
///
///     const Checkpoint checkpoint("runs/step-0000000400");
///     const Tensor weight = checkpoint.read("layers.0.weight");
class Checkpoint {
 public:
  using Wanted = std::function<bool(const CheckpointShard&)>;

  /// Reads run.json and all shards, or those that are wanted. Throws DataError, naming the file and
  /// where possible the tensor, when anything is missing, damaged or differs from the manifest.
  explicit Checkpoint(const std::string& folder, const Wanted& wanted = {});
  Checkpoint(const std::string& folder, const Wanted& wanted, FileSystem& files);

  [[nodiscard]] const std::string& folder() const { return folder_; }
  [[nodiscard]] const Manifest& manifest() const { return manifest_; }
  /// As run_facts_of.
  [[nodiscard]] const std::map<std::string, std::string>& run() const { return run_; }
  /// Null when the manifest has no such tensor, or its shard was not wanted.
  [[nodiscard]] const SafetensorsEntry* find(std::string_view name, std::string_view part) const;
  /// A copy. Throws InvalidArgument where find gives null.
  [[nodiscard]] Tensor read(std::string_view name, std::string_view part = "value") const;

 private:
  void take(const CheckpointShard& shard, FileSystem& files);

  std::string folder_;
  Manifest manifest_;
  std::map<std::string, std::string> run_;
  std::vector<Tensor> files_;
  std::map<std::string, SafetensorsEntry> entries_;  // by part, a newline, and name
};

}  // namespace millrace
