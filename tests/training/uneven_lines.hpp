// A small text in lines of different lengths, and a transformer that reads them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/stages/models.hpp"
#include "millrace/training/dataset.hpp"

namespace millrace::testing_training {

inline constexpr std::int64_t kLongest = 24;

/// Lines of 4 to 40 characters, so of 4 to 24 positions.
inline TrainTest lines(int count = 50) {
  const std::string verses = built_in_text();
  std::string text;
  std::size_t at = 0;
  for (int i = 0; i < count; ++i) {
    const auto length = static_cast<std::size_t>(3 + (i * 11) % 37);
    text += verses.substr(at, length) + "\n";
    at += length;
  }
  return text_samples("lines", text, {.positions = kLongest, .lengths = Lengths::Bucket});
}

/// With positions for padding behind the longest document.
inline ModelSpec gpt(const TrainTest& data,
                     const std::string& more = {},
                     DType precision = DType::F32) {
  ModelSpec model = parse_model("gpt:layers=2,d=16,heads=4,context=32,vocabulary=" +
                                std::to_string(data.train.classes) + more);
  model.precision = precision;
  return model;
}

inline std::vector<std::int32_t> first_rows(std::int32_t count) {
  std::vector<std::int32_t> rows;
  for (std::int32_t row = 0; row < count; ++row) rows.push_back(row);
  return rows;
}

}  // namespace millrace::testing_training
