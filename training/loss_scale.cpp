// The rule of the dynamic loss scale, and its text form.
#include "millrace/training/loss_scale.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "millrace/core/error.hpp"
#include "training/named_settings.hpp"

namespace millrace {
namespace {

constexpr const char* kForm =
    "none, static:SCALE or dynamic[:initial=65536,growth=2,backoff=0.5,interval=2000,floor=1,"
    "ceiling=16777216]";

[[noreturn]] void refuse(std::string_view text, const std::string& why) {
  throw InvalidArgument("loss scale '" + std::string(text) + "': " + why + "; allowed is " + kForm);
}

void check(const LossScaleOptions& options) {
  if (options.kind == LossScaleKind::None) return;
  require(options.initial > 0 && std::isfinite(options.initial),
          "the loss scale must be above 0, got " + exact_text(options.initial));
  if (options.kind == LossScaleKind::Static) return;
  require(options.growth >= 1 && std::isfinite(options.growth),
          "the growth of the loss scale must be at least 1, got " + exact_text(options.growth));
  require(options.backoff > 0 && options.backoff < 1,
          "the backoff of the loss scale must be above 0 and below 1, got " +
              exact_text(options.backoff));
  require(options.interval >= 1,
          "the interval of the loss scale must be at least 1 step, got " +
              std::to_string(options.interval));
  require(options.floor > 0 && options.floor <= options.initial &&
              options.initial <= options.ceiling && std::isfinite(options.ceiling),
          "the loss scale must begin between its floor, above 0, and its ceiling, got " +
              exact_text(options.initial) + " between " + exact_text(options.floor) + " and " +
              exact_text(options.ceiling));
}

double number_in(std::string_view text, std::string_view number) {
  double value = 0;
  const char* end = number.data() + number.size();
  const auto [rest, error] = std::from_chars(number.data(), end, value);
  if (error != std::errc() || rest != end)
    refuse(text, "'" + std::string(number) + "' is not a number");
  return value;
}

void read_setting(std::string_view text, std::string_view setting, LossScaleOptions& options) {
  const std::size_t equals = setting.find('=');
  if (equals == std::string_view::npos)
    refuse(text, "'" + std::string(setting) + "' gives no number");
  const std::string_view name = setting.substr(0, equals);
  const double value = number_in(text, setting.substr(equals + 1));
  if (name == "interval") {
    if (value != std::floor(value) || !(std::abs(value) < 1e15))
      refuse(text, "the interval is a whole number of steps");
    options.interval = static_cast<std::int64_t>(value);
    return;
  }
  const std::array<std::pair<std::string_view, double*>, 5> known = {
      {{"initial", &options.initial},
       {"growth", &options.growth},
       {"backoff", &options.backoff},
       {"floor", &options.floor},
       {"ceiling", &options.ceiling}}};
  for (const auto& [key, target] : known)
    if (key == name) {
      *target = value;
      return;
    }
  refuse(text, "'" + std::string(name) + "' is none of its settings");
}

}  // namespace

LossScale first_scale(const LossScaleOptions& options) {
  check(options);
  return {options.kind == LossScaleKind::None ? 1.0 : options.initial, 0};
}

LossScale next_scale(const LossScale& scale, bool finite, const LossScaleOptions& options) {
  if (options.kind != LossScaleKind::Dynamic) return scale;
  if (!finite) return {std::max(scale.value * options.backoff, options.floor), 0};
  if (scale.finite_in_a_row + 1 < options.interval) return {scale.value, scale.finite_in_a_row + 1};
  return {std::min(scale.value * options.growth, options.ceiling), 0};
}

LossScaleOptions loss_scale_for(DType precision) {
  return {.kind = precision == DType::F16 ? LossScaleKind::Dynamic : LossScaleKind::None};
}

LossScaleOptions parse_loss_scale(std::string_view text) {
  LossScaleOptions options;
  const std::size_t colon = text.find(':');
  const std::string_view kind = text.substr(0, colon);
  const bool more = colon != std::string_view::npos;
  std::string_view settings = more ? text.substr(colon + 1) : std::string_view();
  if (kind == "none" && !more) return options;
  if (kind == "static" && more) {
    options.kind = LossScaleKind::Static;
    options.initial = number_in(text, settings);
  } else if (kind == "dynamic") {
    options.kind = LossScaleKind::Dynamic;
    while (more) {
      const std::size_t comma = settings.find(',');
      read_setting(text, settings.substr(0, comma), options);
      if (comma == std::string_view::npos) break;
      settings.remove_prefix(comma + 1);
    }
  } else {
    refuse(text, "unknown kind");
  }
  check(options);
  return options;
}

std::string to_string(const LossScaleOptions& options) {
  if (options.kind == LossScaleKind::None) return "none";
  if (options.kind == LossScaleKind::Static) return "static:" + exact_text(options.initial);
  return "dynamic:initial=" + exact_text(options.initial) +
         ",growth=" + exact_text(options.growth) + ",backoff=" + exact_text(options.backoff) +
         ",interval=" + std::to_string(options.interval) + ",floor=" + exact_text(options.floor) +
         ",ceiling=" + exact_text(options.ceiling);
}

}  // namespace millrace
