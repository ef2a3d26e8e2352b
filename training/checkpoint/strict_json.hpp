// JSON as files of a checkpoint have it: no name twice in an object, no deep nesting, nothing that
// is not UTF-8. What one parser would read differently from another is refused.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace millrace {

/// Digits of a seal.
inline constexpr std::size_t kSealDigits = 32;

/// The document as text whose last member, `name`, is the xxh3-128 of all of it, that member's own
/// digits taken as zeros. Throws nlohmann::json::exception for what is not UTF-8.
[[nodiscard]] std::string sealed(nlohmann::ordered_json document, std::string_view name);

/// Whether the text ends as one with a seal does.
[[nodiscard]] bool ends_sealed(std::string_view text);

/// Before anything is believed that the text says: throws DataError that begins with `file` unless
/// the seal is that of the text. `kind`: "manifest", "run.json".
void check_seal(std::string_view text, const std::string& file, std::string_view kind);

/// Cost: O(n log n) for n members. Throws DataError that begins with `what` and says the offset.
/// `comparisons`: null, or gets how often names were compared added.
[[nodiscard]] nlohmann::json parse_strictly(std::string_view text,
                                            const std::string& what,
                                            std::uint64_t* comparisons = nullptr);

}  // namespace millrace
