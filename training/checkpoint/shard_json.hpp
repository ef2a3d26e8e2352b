// Shards as the manifest lists them: also what a process tells the one that writes the manifest.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "millrace/training/checkpoint.hpp"

namespace millrace {

/// Throws nlohmann::json::exception for names that are not UTF-8.
[[nodiscard]] std::string write_shards(const std::vector<CheckpointShard>& shards);

/// Throws DataError that begins with `what`.
[[nodiscard]] std::vector<CheckpointShard> read_shards(std::string_view text,
                                                       const std::string& what);

}  // namespace millrace
