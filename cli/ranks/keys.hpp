// Files of keys: one per rank, of mode 0600, with which the ranks of one job prove to each other
// who they are. Made by launch and by the verb keys, read by worker.
#pragma once

#include <string>
#include <vector>

#include "millrace/transport/zeromq.hpp"

namespace millrace::cli {

/// Makes new keys for `ranks` ranks and writes `directory`/keys-R for each: its own pair, then the
/// public keys of all. Readable by this user alone from their first moment. Returns the paths.
/// Throws InvalidArgument when one exists already or cannot be written; then none is left.
std::vector<std::string> write_key_files(const std::string& directory, int ranks);

/// Throws InvalidArgument when the file cannot be read, others may read it, or it does not hold
/// the keys of `rank` in a world of `world` ranks.
[[nodiscard]] CurveRing read_key_file(const std::string& path, Rank rank, int world);

}  // namespace millrace::cli
