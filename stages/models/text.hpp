// Reading models by their text: "kind:" with widths and options after it.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/stages/models.hpp"

namespace millrace {

/// The text of a model; an error message quotes all of it and the allowed form.
struct ModelText {
  std::string_view whole;
  const char* form;

  [[noreturn]] void refuse(const std::string& why) const;
};

/// Cuts `text` at `separator`; an empty text is one empty part.
[[nodiscard]] std::vector<std::string_view> split(std::string_view text, char separator);

template <class Number>
bool read_number(std::string_view text, Number& number) {
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, number);
  return result.ec == std::errc{} && result.ptr == end;
}

/// A number from 1 to 2^24.
[[nodiscard]] std::int64_t read_width(const ModelText& text, std::string_view width);

/// "relu", "gelu" or "tanh".
[[nodiscard]] std::optional<Activation> read_activation(std::string_view option);

/// X of "dropout=X" from 0 to below 1.
[[nodiscard]] std::optional<double> read_dropout(const ModelText& text, std::string_view option);

// The kinds: parts of the text after "kind:", cut at commas, to the layers.
[[nodiscard]] ModelSpec read_mlp(const ModelText& text, std::span<const std::string_view> parts);
[[nodiscard]] ModelSpec read_conv(const ModelText& text, std::span<const std::string_view> parts);
[[nodiscard]] ModelSpec read_gpt(const ModelText& text, std::span<const std::string_view> parts);

inline constexpr const char* kMlpForm =
    "mlp:IN-HIDDEN-...-OUT[,relu|gelu|tanh][,norm[=layer|rms|batch]][,residual][,dropout=RATE], "
    "for example mlp:64-96-10";
inline constexpr const char* kConvForm =
    "conv:HEIGHTxWIDTHxCHANNELS-BLOCK-...-OUT[,relu|gelu|tanh][,norm=batch|group|none]"
    "[,dropout=RATE], for example conv:8x8x1-16-32-10";
inline constexpr const char* kGptForm =
    "gpt:layers=N,d=N,heads=N,context=N[,kv=N][,mlp=gelu|swiglu][,norm=layer|rms]"
    "[,pos=learned|rotary][,tied=no|yes][,dropout=RATE][,vocabulary=N], for example "
    "gpt:layers=4,d=128,heads=4,context=128";

}  // namespace millrace
