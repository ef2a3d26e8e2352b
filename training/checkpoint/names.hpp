// What things are called in the folder of checkpoints.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/training/state.hpp"

namespace millrace {

class FileSystem;

inline constexpr std::string_view kManifestFile = "manifest.json";
inline constexpr std::string_view kRunFile = "run.json";
/// Of what is not finished, and of what is on its way out: the next start removes both.
inline constexpr std::string_view kTemporary = ".tmp-";
inline constexpr std::string_view kTrash = ".trash-";
/// Locked by the job that saves there; holds that job, its host and its process.
inline constexpr std::string_view kLockFile = ".lock";
/// Of a checkpoint that was found damaged, kept for a person to look at.
inline constexpr std::string_view kDamaged = "damaged-";
/// Of one that is newer than the best one, from which the training continued.
inline constexpr std::string_view kSuperseded = "superseded-";
/// "DIR/best" stands for the best checkpoint in DIR.
inline constexpr std::string_view kBest = "best";

/// When a checkpoint is of: behind so many steps, and so many micro-batches of the next.
struct Moment {
  std::int64_t step = 0;
  std::int64_t micro_batches = 0;

  friend auto operator<=>(const Moment&, const Moment&) = default;
};

[[nodiscard]] inline Moment moment_of(const TrainingCounters& counters) {
  return {counters.mini_batches, counters.partial.micro_batches};
}

/// "step-0000000400", "step-0000000400-plus-0000000012".
[[nodiscard]] std::string folder_name(const Moment& moment);

/// The moment of a folder of that name; none for any other.
[[nodiscard]] std::optional<Moment> moment_in(std::string_view name);

/// The part of a parameter that holds the sums of a copy: "gradient", "gradient.1", ...
[[nodiscard]] std::string gradient_part(Replica copy);

/// One spelling for every path, so that two can be compared.
[[nodiscard]] std::string whole_path(const std::string& path);

/// The folder of the best checkpoint by the manifest in `folder`, next to it; empty: it names none
/// or cannot be read.
[[nodiscard]] std::string best_named_in(const std::string& folder, FileSystem& files);

[[nodiscard]] inline std::string path_in(const std::string& folder, std::string_view name) {
  return folder + "/" + std::string(name);
}

}  // namespace millrace
