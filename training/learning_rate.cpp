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

double own_rate(const LearningRate& curve, std::int64_t update) {
  const double rate = curve.function(update);
  require(rate >= 0 && std::isfinite(rate), [&] {
    return "the learning rate's function gave " + std::to_string(rate) + " for update " +
           std::to_string(update) + "; it must be finite and at least 0";
  });
  return rate;
}

/// The curve behind the warm-up.
double after_warm_up(const LearningRate& rate, std::int64_t update) {
  if (rate.function) return own_rate(rate, update);
  const double floor = rate.floor;
  switch (rate.kind) {
    case LearningRateKind::Linear:
      return rate.base * (1 - (1 - floor) * way_done(rate, update));
    case LearningRateKind::Cosine:
      return rate.base *
             (floor + (1 - floor) * (1 + std::cos(std::numbers::pi * way_done(rate, update))) / 2);
    case LearningRateKind::Constant:
      break;
  }
  return rate.base;
}

}  // namespace

bool LearningRate::needs_total() const {
  return kind != LearningRateKind::Constant && !function && total_updates == 0;
}

void LearningRate::check() const {
  require(base >= 0 && std::isfinite(base),
          "learning rate must be at least 0, got " + std::to_string(base));
  require(floor >= 0 && floor <= 1,
          "learning-rate floor must be between 0 and 1, got " + std::to_string(floor));
  require(warm_up >= 0, "warm-up must be at least 0 updates, got " + std::to_string(warm_up));
  require(
      total_updates >= 0,
      "the learning rate's total_updates must be at least 0, got " + std::to_string(total_updates));
}

double LearningRate::at(std::int64_t update) const {
  check();
  require(!needs_total(), [&] {
    return "a " + std::string(name_of(kind)) +
           " learning rate falls until total_updates, which is 0: say how many updates there will "
           "be (fit() counts its own), or take a constant one";
  });
  if (update >= warm_up) return after_warm_up(*this, update);
  const double largest = function ? own_rate(*this, update) : base;
  return largest * static_cast<double>(update + 1) / static_cast<double>(warm_up);
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
