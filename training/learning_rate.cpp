// Learning-rate schedules: constant, linear and cosine, each after a linear warm-up.
#include "millrace/training/learning_rate.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "millrace/core/error.hpp"

namespace millrace {
namespace {

/// How much of the way from the end of the warm-up to the last update lies behind.
double way_done(const LearningRate& rate, std::int64_t update) {
  if (rate.total_updates <= rate.warm_up) return 1;
  const double share = static_cast<double>(update - rate.warm_up) /
                       static_cast<double>(rate.total_updates - rate.warm_up);
  return std::clamp(share, 0.0, 1.0);
}

}  // namespace

double LearningRate::at(std::int64_t update) const {
  require(base >= 0 && std::isfinite(base),
          "learning rate must be at least 0, got " + std::to_string(base));
  require(floor >= 0 && floor <= 1,
          "learning-rate floor must be between 0 and 1, got " + std::to_string(floor));
  require(warm_up >= 0, "warm-up must be at least 0 updates, got " + std::to_string(warm_up));
  if (update < warm_up)
    return base * static_cast<double>(update + 1) / static_cast<double>(warm_up);

  switch (kind) {
    case LearningRateKind::Constant:
      return base;
    case LearningRateKind::Linear:
      return base * (1 - (1 - floor) * way_done(*this, update));
    case LearningRateKind::Cosine:
      return base *
             (floor + (1 - floor) * (1 + std::cos(std::numbers::pi * way_done(*this, update))) / 2);
  }
  return base;
}

std::string_view name_of(LearningRateKind kind) {
  switch (kind) {
    case LearningRateKind::Constant:
      return "constant";
    case LearningRateKind::Linear:
      return "linear";
    case LearningRateKind::Cosine:
      return "cosine";
  }
  return "?";
}

LearningRateKind learning_rate_kind(std::string_view name) {
  for (const auto kind :
       {LearningRateKind::Constant, LearningRateKind::Linear, LearningRateKind::Cosine})
    if (name_of(kind) == name) return kind;
  throw InvalidArgument("unknown learning-rate schedule '" + std::string(name) +
                        "'; known are constant, linear, cosine");
}

}  // namespace millrace
