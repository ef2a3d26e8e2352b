// Which files a training's state goes to: cut by the names of its parameters, and by nothing else.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/training/checkpoint.hpp"
#include "millrace/training/state.hpp"
#include "millrace/transport/process_group.hpp"

namespace millrace {

/// What the file of a parameter is called: its name up to the first number, which counts layers
/// ("layers.0" of "layers.0.weight"), else all of it; a digest where that cannot be a file's name.
[[nodiscard]] std::string shard_stem(std::string_view name);

/// The shards that this process writes: those whose parameters it hosts, unless a lower rank hosts
/// them too. A collective of the group. Throws InvalidArgument when no process hosts all parameters
/// of a shard.
[[nodiscard]] std::vector<std::vector<std::string>> names_to_write(const TrainingState& state,
                                                                   ProcessGroup& group);

/// The files of this process in memory, and what fills them. Made once: filling them again touches
/// only memory that is there already.
/// Thread-safety: externally synchronised.
class Snapshot {
 public:
  Snapshot(const TrainingState& state, const std::vector<std::vector<std::string>>& names);

  /// Copies the state as it is. Cost: one pass over the memory.
  void take(const TrainingState& state);

  /// A file and the bytes that belong into it.
  struct File {
    std::string name;
    SafetensorsImage image;
    std::vector<std::pair<std::string, std::string>> tensors;  // names and parts
  };

  [[nodiscard]] const std::vector<File>& files() const { return files_; }
  /// What the manifest says of them. Cost: two hashes of all bytes.
  [[nodiscard]] std::vector<CheckpointShard> described() const;

 private:
  std::vector<File> files_;
};

}  // namespace millrace
