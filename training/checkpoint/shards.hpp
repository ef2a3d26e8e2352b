// Which files a training's state goes to: cut by the names of its parameters, and by nothing else.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "millrace/training/checkpoint.hpp"
#include "millrace/training/state.hpp"
#include "millrace/transport/process_group.hpp"

namespace millrace {

/// What the file of a parameter is called: its name up to the first number, which counts layers
/// ("layers.0" of "layers.0.weight"), else all of it; a digest where that cannot be a file's name.
[[nodiscard]] std::string shard_stem(std::string_view name);

/// A tensor of the state on its way to a file.
struct SavedTensor {
  std::string name, part;
  const Tensor* source = nullptr;  ///< of its dtype and shape
  bool is_spread = false;          ///< filled by who collects its shares, not from the source
};

/// The files in memory that this process writes, and what fills them. Made once: filling them again
/// touches only memory that is there already. Reads the state that it was made of, which must
/// outlive it. Thread-safety: externally synchronised.
class Snapshot {
 public:
  /// Copies the state as it is, but for what is spread. Cost: one pass over the memory.
  void take();
  /// Fills that in, if this process writes it.
  void fill(std::string_view name, std::string_view part, const Tensor& contents);

  /// A file and the bytes that belong into it.
  struct File {
    std::string name;
    SafetensorsImage image;
    std::vector<SavedTensor> tensors;
  };

  void add(std::string file, std::vector<SavedTensor> tensors);

  [[nodiscard]] const std::vector<File>& files() const { return files_; }
  /// What the manifest says of them. Cost: two hashes of all bytes.
  [[nodiscard]] std::vector<CheckpointShard> described() const;

 private:
  std::vector<File> files_;
};

/// Values, and what the optimizer keeps of them: the shards whose parameters this process hosts,
/// unless a lower rank hosts them too. A collective of the group. Throws InvalidArgument when no
/// process hosts all parameters of a shard.
[[nodiscard]] Snapshot snapshot_of(const TrainingState& state, ProcessGroup& group);

/// The gradients of every copy of the model, shared out alike.
[[nodiscard]] Snapshot gradients_of(const TrainingState& state,
                                    std::int64_t copies,
                                    ProcessGroup& group);

}  // namespace millrace
