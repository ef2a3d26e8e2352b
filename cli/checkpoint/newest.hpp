// What a path to checkpoints means to verbs that need one of them.
#pragma once

#include <string>

#include "millrace/training/checkpoint.hpp"

namespace millrace::cli {

/// The newest of a folder of checkpoints, else the path itself. Throws StorageError.
[[nodiscard]] inline std::string newest_at(const std::string& path) {
  const auto places = find_checkpoints(path);
  return places.empty() ? path : places.front().folder;
}

}  // namespace millrace::cli
