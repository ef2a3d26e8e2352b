// Reader of comma-separated samples with the label last, and the digits that are built in.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>

#include "millrace/core/error.hpp"
#include "millrace/training/dataset.hpp"
#include "millrace/training/file_bytes.hpp"
#include "training/embedded_digits.hpp"

namespace millrace {
namespace {

constexpr std::int32_t kLargestLabel = 1'000'000;

/// One pass over the text; the first line decides how many columns there are.
class CsvReader {
 public:
  CsvReader(std::string name, std::string_view text) : name_(std::move(name)), text_(text) {}

  Dataset read() {
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

  void read_row(std::string_view row) {
    const auto columns = static_cast<std::size_t>(std::count(row.begin(), row.end(), ',')) + 1;
    if (columns_ == 0) {
      if (columns < 2) fail("expected at least 2 columns (features, label last), found 1");
      columns_ = columns;
      first_line_ = line_;
    }
    if (columns != columns_)
      fail("expected " + std::to_string(columns_) + " columns as in line " +
           std::to_string(first_line_) + ", found " + std::to_string(columns));
    for (std::size_t column = 0; column < columns; ++column) {
      const std::size_t end = std::min(row.find(','), row.size());
      read_field(row.substr(0, end), column);
      row.remove_prefix(std::min(end + 1, row.size()));
    }
  }

  void read_field(std::string_view field, std::size_t column) {
    while (!field.empty() && field.front() == ' ') field.remove_prefix(1);
    while (!field.empty() && field.back() == ' ') field.remove_suffix(1);
    const char* const end = field.data() + field.size();
    const std::string where = "column " + std::to_string(column + 1);
    if (column + 1 == columns_) {
      std::int32_t label = 0;
      const auto [rest, error] = std::from_chars(field.data(), end, label);
      if (error != std::errc() || rest != end || label < 0 || label > kLargestLabel)
        fail("expected a label from 0 to " + std::to_string(kLargestLabel) + " in " + where +
             ", found '" + std::string(field) + "'");
      labels_.push_back(label);
      return;
    }
    float value = 0;
    const auto [rest, error] = std::from_chars(field.data(), end, value);
    if (error != std::errc() || rest != end || !std::isfinite(value))
      fail("expected a finite number in " + where + ", found '" + std::string(field) + "'");
    features_.push_back(value);
  }

  Dataset finish() {
    float largest = 0;
    for (const float value : features_) largest = std::max(largest, std::abs(value));
    const auto n = static_cast<std::int64_t>(labels_.size());
    Tensor features(DType::F32, {n, static_cast<std::int64_t>(columns_ - 1)});
    Tensor targets(DType::I32, {n});
    const float scale = largest > 0 ? largest : 1.0F;
    std::transform(
        features_.begin(), features_.end(), features.as<float>().begin(), [&](float value) {
          return value / scale;
        });
    std::copy(labels_.begin(), labels_.end(), targets.as<std::int32_t>().begin());
    return make_dataset(name_,
                        std::move(features),
                        std::move(targets),
                        *std::max_element(labels_.begin(), labels_.end()) + 1);
  }

  std::string name_;
  std::string_view text_;
  std::int64_t line_ = 0;
  std::int64_t first_line_ = 0;
  std::size_t columns_ = 0;
  std::vector<float> features_;
  std::vector<std::int32_t> labels_;
};

Dataset parse_csv(const std::string& name, const std::vector<std::uint8_t>& bytes) {
  const std::string text(bytes.begin(), bytes.end());
  return CsvReader(name, text).read();
}

}  // namespace

Dataset read_samples_csv(const std::string& file) {
  return parse_csv(file, read_file(file));
}

Dataset digits() {
  return parse_csv("digits", gunzip(embedded_digits(), "digits"));
}

}  // namespace millrace
