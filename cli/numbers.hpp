// Numbers as typed: whole numbers, decimals and lists of them, with refusals that name the option
// as typed, the value and what is allowed; and numbers as printed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace millrace::cli {

[[nodiscard]] std::int64_t whole_number(const std::string& option,
                                        const std::string& text,
                                        std::int64_t least,
                                        std::int64_t most = 2'147'483'647);

/// A decimal from `least` to `most`.
[[nodiscard]] double decimal(const std::string& option,
                             const std::string& text,
                             double least,
                             double most = 1e15);

/// Comma-separated decimals, each at least `least`.
[[nodiscard]] std::vector<double> number_list(const std::string& option,
                                              const std::string& text,
                                              double least);

/// Shortest text with at most 12 significant digits, whole numbers with all: "4.5".
[[nodiscard]] std::string plain(double value);

/// At most `digits` significant digits, but all before the point: "4.5", "1234". For tables.
[[nodiscard]] std::string brief(double value, int digits = 6);

/// The shortest text that is read as exactly this number again: for numbers that travel.
[[nodiscard]] std::string exact(double value);

/// "1 value", "3 values".
[[nodiscard]] std::string value_count(std::size_t values);

/// "27.3 %".
[[nodiscard]] std::string percent(double share);

/// Columns separated by two blanks; the first left-aligned, the rest right-aligned.
[[nodiscard]] std::string table(const std::vector<std::vector<std::string>>& rows);

}  // namespace millrace::cli
