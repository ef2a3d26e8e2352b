// Checkpoints: the whole state of a training in a folder of safetensors files with a manifest, each
// byte under a hash. With the safetensors format, initial weights, and the file system they need.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/core/error.hpp"
#include "millrace/core/tensor.hpp"
#include "millrace/training/state.hpp"

namespace millrace {

/// Texts beside the tensors, `__metadata__` in the header.
using SafetensorsMetadata = std::map<std::string, std::string>;

/// A tensor of a file that was read. Thread-safety: immutable, share freely.
struct SafetensorsEntry {
  std::string name;
  std::string type;                   ///< as the format calls it: "F32", "BF16", "BOOL", ...
  std::vector<std::int64_t> extents;  ///< row-major; none: a scalar
  std::span<const std::byte> bytes;   ///< little-endian, in the file's memory, at any alignment

  /// The type as this library has it; none for those that it cannot hold.
  [[nodiscard]] std::optional<DType> dtype() const;

  /// A copy in aligned memory. Throws DataError, naming the tensor, for a type that this library
  /// cannot hold and for more than Dims::kMax extents.
  [[nodiscard]] Tensor tensor() const;
};

/// A file that was read and found right.
struct Safetensors {
  SafetensorsMetadata metadata;
  std::vector<SafetensorsEntry> entries;  ///< as their bytes lie in the file
  std::vector<std::size_t> by_name;       ///< indices of `entries` in ascending order of names

  /// Null when there is no such tensor. Cost: O(log entries).
  [[nodiscard]] const SafetensorsEntry* find(std::string_view name) const;
};

/// Bytes of a header at most, and of a name.
inline constexpr std::uint64_t kSafetensorsHeaderMost = 100'000'000;
inline constexpr std::size_t kSafetensorsNameMost = 1024;

/// Reads a whole file that lies in memory, which the entries point into. Strict: throws DataError,
/// with `file`, the tensor and what was expected, when
/// - the header is longer than kSafetensorsHeaderMost or than the file, does not begin with `{`, is
///   not JSON in UTF-8, names anything twice, or has a member that the format does not know;
/// - a name is longer than kSafetensorsNameMost or has control characters;
/// - the tensors' bytes do not lie one behind another from the beginning of the data to the end of
///   the file, or one has not the size of its type and extents.
/// A file of another kind (git-lfs pointer, PyTorch zip or pickle, gzip, HDF5, GGUF, JSON) is
/// named. No memory is taken for what the header merely claims. Cost: O(header + n log n) for n
/// tensors, which are not looked at.
[[nodiscard]] Safetensors read_safetensors(std::span<const std::byte> bytes,
                                           const std::string& file);

/// A tensor of a file that will be written.
struct SafetensorsPlace {
  std::string name;
  DType dtype = DType::F32;
  Dims dims;
};

/// A whole file in memory, whose tensors are filled in afterwards, any number of times: header and
/// places depend on names, types and shapes alone, whatever their order here. Tensors lie in the
/// order of the reference writer (widest elements first, then by name); the data begins at a
/// multiple of 4,096 bytes.
/// Thread-safety: externally synchronised.
///
///     SafetensorsImage image({{"weight", DType::F32, {10, 64}}});
///     image.fill("weight", parameter.value);
///     stream.write(image.bytes());
class SafetensorsImage {
 public:
  /// The places are zero. Throws InvalidArgument when a name comes twice, is longer than
  /// kSafetensorsNameMost, has control characters, is not UTF-8 or is `__metadata__`, and when the
  /// header gets too long.
  explicit SafetensorsImage(std::vector<SafetensorsPlace> places,
                            const SafetensorsMetadata& metadata = {});

  /// Copies a tensor to its place. Throws InvalidArgument when there is none of that name, type and
  /// shape. Cost: O(bytes + log places).
  void fill(std::string_view name, const Tensor& tensor);

  /// The file.
  [[nodiscard]] std::span<const std::byte> bytes() const;
  /// The bytes of one tensor in it. Throws InvalidArgument when there is none of that name.
  [[nodiscard]] std::span<const std::byte> bytes_of(std::string_view name) const;
  /// Sorted by name.
  [[nodiscard]] std::span<const SafetensorsPlace> places() const { return places_; }

 private:
  [[nodiscard]] std::size_t number_of(std::string_view name) const;

  std::vector<SafetensorsPlace> places_;  // by name
  std::vector<std::size_t> begins_;       // in the file, by place
  Tensor file_;
};

/// The file system refused; the message names the path and the reason.
class StorageError : public Error {
 public:
  using Error::Error;
};

/// A file that is being written.
struct OpenFile {
  int descriptor = -1;
  std::string path;
};

/// The calls as POSIX has them. Every one throws StorageError when it fails; nothing is tried
/// twice. A sync that failed means that data may be lost, whatever a later one says.
/// Thread-safety: all calls from any thread.
class FileSystem {
 public:
  FileSystem() = default;
  FileSystem(const FileSystem&) = delete;
  FileSystem& operator=(const FileSystem&) = delete;
  virtual ~FileSystem() = default;

  /// A new file; fails when there is one of that name.
  virtual OpenFile create(const std::string& path);
  /// Takes the room for so many bytes, so that a full disk is found before anything is written.
  virtual void reserve(const OpenFile& file, std::uint64_t bytes);
  /// Writes some of the bytes, at least one, and tells how many.
  virtual std::size_t write(const OpenFile& file, std::span<const std::byte> bytes);
  /// Returns when the file's contents are durable.
  virtual void sync(const OpenFile& file);
  virtual void close(const OpenFile& file);

  /// Also makes the folders above it; one that is there is left as it is.
  virtual void make_folder(const std::string& path);
  /// Returns when the names in the folder are durable.
  virtual void sync_folder(const std::string& path);
  /// Replaces a file of the new name; fails when that is a folder with something in it.
  virtual void rename(const std::string& from, const std::string& to);
  /// A file or an empty folder.
  virtual void remove(const std::string& path);

  /// Creates the file if needed, locks it until unlock() or the end of the process, and writes
  /// `text` into it; none where it is locked already, also in this process. A file system without
  /// locks grants every lock.
  virtual std::optional<OpenFile> lock(const std::string& path, const std::string& text);
  /// Removes the file and frees the lock.
  virtual void unlock(const OpenFile& file);

  /// Names in a folder, ascending; none where there is no such folder.
  virtual std::vector<std::string> list(const std::string& folder);
  virtual bool exists(const std::string& path);
  /// The contents, as u8. Rejects a file of more than `most` bytes before it takes memory, and
  /// anything but a regular file before it waits for it.
  virtual Tensor read(const std::string& path, std::uint64_t most);
};

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
  /// The newest version. All older ones can be read. A manifest has version 3 if it has a record of
  /// validations, else version 2 if it was saved inside an update, else version 1.
  static constexpr std::int64_t kVersion = 3;

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

/// `path`; for "DIR/best", the best checkpoint in DIR (ValidationOptions::keep_best), which the
/// newest manifest there names. Throws DataError when there is none.
[[nodiscard]] std::string resolve_best(const std::string& path);
[[nodiscard]] std::string resolve_best(const std::string& path, FileSystem& files);

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
