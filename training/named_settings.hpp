// Settings that a person types behind a name: "every=200,factor=0.5,frozen". What is unknown, given
// twice or out of its range is refused in one sentence.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace millrace {

/// Settings of one text, separated by commas. Thread-safety: immutable, share freely.
class NamedSettings {
 public:
  /// Throws InvalidArgument for an empty setting, one that is not `known` (with the nearest) or one
  /// that comes twice.
  NamedSettings(std::string_view text, std::span<const std::string_view> known);

  /// None where the setting is not there. All throw InvalidArgument for what is no number, or out
  /// of range.
  [[nodiscard]] std::optional<double> number(std::string_view name) const;
  /// At least 1.
  [[nodiscard]] std::optional<std::int64_t> count(std::string_view name) const;
  /// "yes" and "no"; the bare name means yes.
  [[nodiscard]] std::optional<bool> choice(std::string_view name) const;

 private:
  [[nodiscard]] const std::string* find(std::string_view name) const;

  std::map<std::string, std::string, std::less<>> values_;
};

/// "a, b, c".
[[nodiscard]] std::string listed(std::span<const std::string_view> names);

/// The shortest text that is read as exactly this number again.
[[nodiscard]] std::string exact_text(double number);

}  // namespace millrace
