// NamePattern: names with numbers in named places, such as "F{micro_batch} of stage {stage}".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::plan {

/// The numbers of a name; unset where the pattern has no place for one.
struct NameParts {
  std::optional<std::int64_t> stage, micro_batch, slice;
};

/// Thread-safety: immutable, share freely.
class NamePattern {
 public:
  /// One pattern without `|`. Throws InvalidArgument for an unknown word in braces, one that occurs
  /// twice, and a brace that is not closed.
  explicit NamePattern(std::string_view text);

  /// The patterns between `|`; none for an empty text.
  static std::vector<NamePattern> several(std::string_view text);

  [[nodiscard]] bool has_stage() const;

  /// The parts when the whole name matches. A number has at most nine digits. Cost: O(length of
  /// the name x length of the pattern).
  [[nodiscard]] std::optional<NameParts> match(std::string_view name) const;

 private:
  /// A literal, a number with its member, or anything (`*`).
  struct Piece {
    std::string literal;
    std::optional<std::int64_t> NameParts::*number = nullptr;
    bool anything = false;
  };

  void add_literal(std::string_view text);
  void add_number(std::string_view word);

  std::vector<Piece> pieces_;
};

}  // namespace millrace::plan
