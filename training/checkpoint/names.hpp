// What things are called in the folder of checkpoints.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace millrace {

inline constexpr std::string_view kManifestFile = "manifest.json";
inline constexpr std::string_view kRunFile = "run.json";
/// Of what is not finished, and of what is on its way out: the next start removes both.
inline constexpr std::string_view kTemporary = ".tmp-";
inline constexpr std::string_view kTrash = ".trash-";
/// Of a checkpoint that was found damaged, kept for a person to look at.
inline constexpr std::string_view kDamaged = "damaged-";

/// "step-0000000400".
[[nodiscard]] std::string folder_name(std::int64_t step);

/// The step of a folder of that name; none for any other.
[[nodiscard]] std::optional<std::int64_t> step_of(std::string_view name);

/// One spelling for every path, so that two can be compared.
[[nodiscard]] std::string whole_path(const std::string& path);

[[nodiscard]] inline std::string path_in(const std::string& folder, std::string_view name) {
  return folder + "/" + std::string(name);
}

}  // namespace millrace
