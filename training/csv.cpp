// Reader of separated numbers with the label last, and the digits that are built in.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>

#include "millrace/core/error.hpp"
#include "millrace/training/dataset.hpp"
#include "training/embedded.hpp"

namespace millrace {
namespace {

constexpr std::int32_t kLargestLabel = 1'000'000;

std::string_view trimmed(std::string_view field) {
  while (!field.empty() && field.front() == ' ') field.remove_prefix(1);
  while (!field.empty() && field.back() == ' ') field.remove_suffix(1);
  return field;
}

template <class T>
bool reads(std::string_view field, T& value) {
  const char* const end = field.data() + field.size();
  const auto [rest, error] = std::from_chars(field.data(), end, value);
  return error == std::errc() && rest == end;
}

/// A comma, unless the first line has none but semicolons or tabs.
char separator_of(std::string_view row) {
  for (const char separator : {',', ';', '\t'})
    if (row.find(separator) != std::string_view::npos) return separator;
  return ',';
}

/// One pass over the text; the first line decides how many columns there are and what separates
/// them.
class CsvReader {
 public:
  CsvReader(std::string name, std::string_view text, float divisor)
      : name_(std::move(name)), text_(text), divisor_(divisor) {}

  Dataset read() {
    constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
    if (text_.starts_with(kByteOrderMark)) text_.remove_prefix(kByteOrderMark.size());
    while (!text_.empty()) {
      ++line_;
      const std::size_t end = text_.find('\n');
      std::string_view row = text_.substr(0, end);
      text_.remove_prefix(end == std::string_view::npos ? text_.size() : end + 1);
      if (!row.empty() && row.back() == '\r') row.remove_suffix(1);
      if (!row.empty()) read_row(row);
    }
    if (labels_.empty()) throw DataError(name_ + ": holds no sample, expected at least one line");
    return finish();
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(name_ + ", line " + std::to_string(line_) + ": " + what);
  }

  template <class Use>
  void for_fields(std::string_view row, const Use& use) const {
    for (std::size_t column = 0; column < columns_; ++column) {
      const std::size_t end = std::min(row.find(separator_), row.size());
      use(trimmed(row.substr(0, end)), column);
      row.remove_prefix(std::min(end + 1, row.size()));
    }
  }

  /// A line of names: no field of it is a number.
  [[nodiscard]] bool is_header(std::string_view row) const {
    bool has_number = false;
    for_fields(row, [&](std::string_view field, std::size_t) {
      double value = 0;
      has_number = has_number || field.empty() || reads(field, value);
    });
    return !has_number;
  }

  void read_row(std::string_view row) {
    const bool first = columns_ == 0;
    if (first) separator_ = separator_of(row);
    const auto columns =
        static_cast<std::size_t>(std::count(row.begin(), row.end(), separator_)) + 1;
    if (first) {
      if (columns < 2)
        fail(
            "expected at least 2 columns (features, label last), separated by commas, semicolons "
            "or tabs, found 1");
      if (separator_ == ',' && row.find(';') != std::string_view::npos)
        fail("has both commas and semicolons; decimal commas are not read: write 1.5 for 1,5");
      columns_ = columns;
      first_line_ = line_;
      if (is_header(row)) return;
    }
    if (columns != columns_)
      fail("expected " + std::to_string(columns_) + " columns as in line " +
           std::to_string(first_line_) + ", found " + std::to_string(columns));
    for_fields(row, [&](std::string_view field, std::size_t column) {
      column + 1 == columns_ ? read_label(field) : read_feature(field, column);
    });
  }

  void read_label(std::string_view field) {
    std::int32_t label = 0;
    const bool whole = reads(field, label);
    double number = 0;
    if (!whole && reads(field, number) && std::isfinite(number))
      fail("expected a label from 0 to " + std::to_string(kLargestLabel) + " in column " +
           std::to_string(columns_) + ", found '" + std::string(field) +
           "': numbers to regress are not read from a CSV file; a Dataset of your own may have "
           "them");
    if (!whole || label < 0 || label > kLargestLabel)
      fail("expected a label from 0 to " + std::to_string(kLargestLabel) + " in column " +
           std::to_string(columns_) + ", found '" + std::string(field) + "'");
    labels_.push_back(label);
  }

  void read_feature(std::string_view field, std::size_t column) {
    float value = 0;
    if (!reads(field, value) || !std::isfinite(value))
      fail("expected a finite number in column " + std::to_string(column + 1) + ", found '" +
           std::string(field) + "'");
    features_.push_back(value);
  }

  Dataset finish() {
    float largest = 0;
    for (const float value : features_) largest = std::max(largest, std::abs(value));
    const auto n = static_cast<std::int64_t>(labels_.size());
    Tensor features(DType::F32, {n, static_cast<std::int64_t>(columns_ - 1)});
    Tensor targets(DType::I32, {n});
    const float own = largest > 0 ? largest : 1.0F;
    const float scale = divisor_ > 0 ? divisor_ : own;
    std::transform(
        features_.begin(), features_.end(), features.as<float>().begin(), [&](float value) {
          return value / scale;
        });
    std::copy(labels_.begin(), labels_.end(), targets.as<std::int32_t>().begin());
    Dataset data = make_dataset(name_,
                                std::move(features),
                                std::move(targets),
                                *std::max_element(labels_.begin(), labels_.end()) + 1);
    data.divisor = scale;
    return data;
  }

  std::string name_;
  std::string_view text_;
  float divisor_;
  char separator_ = ',';
  std::int64_t line_ = 0;
  std::int64_t first_line_ = 0;
  std::size_t columns_ = 0;
  std::vector<float> features_;
  std::vector<std::int32_t> labels_;
};

Dataset parse_csv(const std::string& name, const std::vector<std::uint8_t>& bytes, float divisor) {
  const std::string text(bytes.begin(), bytes.end());
  return CsvReader(name, text, divisor).read();
}

}  // namespace

Dataset read_samples_csv(const std::string& file, float divisor) {
  require(divisor >= 0 && std::isfinite(divisor),
          "the divisor of features must be at least 0 and finite, got " + std::to_string(divisor));
  return parse_csv(file, read_file(file), divisor);
}

Dataset digits() {
  return parse_csv("digits", gunzip(embedded_digits(), "digits"), 0);
}

}  // namespace millrace
