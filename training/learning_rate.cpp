// The curves of the learning rate, each after a linear warm-up.
#include "millrace/training/learning_rate.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "millrace/core/error.hpp"

namespace millrace {
namespace {

double way_between(std::int64_t first, std::int64_t last, std::int64_t update) {
  if (last <= first) return 1;
  const double share = static_cast<double>(update - first) / static_cast<double>(last - first);
  return std::clamp(share, 0.0, 1.0);
}

/// How much of the way from the end of the warm-up to the last update lies behind.
double way_done(const LearningRate& rate, std::int64_t update) {
  return way_between(rate.warm_up, rate.total_updates, update);
}

std::int64_t share_rounded_up(std::int64_t whole, std::int64_t parts) {
  return std::max<std::int64_t>(1, (whole + parts - 1) / parts);
}

double share_after_steps(const LearningRate& rate, std::int64_t update) {
  const std::int64_t every =
      rate.every > 0 ? rate.every : share_rounded_up(rate.total_updates - rate.warm_up, 3);
  const std::int64_t steps = (update - rate.warm_up) / every;
  return std::max(rate.floor, std::pow(rate.factor, static_cast<double>(steps)));
}

double share_by_inverse_root(const LearningRate& rate, std::int64_t update) {
  const auto from = static_cast<double>(std::max<std::int64_t>(rate.warm_up, 1));
  return std::max(rate.floor, std::sqrt(from / static_cast<double>(update + 1)));
}

double share_at_the_end(const LearningRate& rate, std::int64_t update) {
  const std::int64_t last = rate.total_updates;
  const std::int64_t decay = rate.decay > 0 ? rate.decay : share_rounded_up(last, 10);
  const std::int64_t first = std::max(rate.warm_up, last - decay);
  if (update < first) return 1;
  return 1 - (1 - rate.floor) * way_between(first, last, update);
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
    case LearningRateKind::Step:
      return rate.base * share_after_steps(rate, update);
    case LearningRateKind::InverseSquareRoot:
      return rate.base * share_by_inverse_root(rate, update);
    case LearningRateKind::WarmUpStableDecay:
      return rate.base * share_at_the_end(rate, update);
    case LearningRateKind::Constant:
      break;
  }
  return rate.base;
}

void require_count(const char* what, std::int64_t value) {
  require(value >= 0, [&] {
    return std::string("the learning rate's ") + what + " must be at least 0, got " +
           std::to_string(value);
  });
}

}  // namespace

bool LearningRate::needs_total() const {
  if (function || total_updates > 0) return false;
  switch (kind) {
    case LearningRateKind::Constant:
    case LearningRateKind::InverseSquareRoot:
      return false;
    case LearningRateKind::Step:
      return every == 0;
    case LearningRateKind::Linear:
    case LearningRateKind::Cosine:
    case LearningRateKind::WarmUpStableDecay:
      return true;
  }
  return false;
}

void LearningRate::check() const {
  require(base >= 0 && std::isfinite(base),
          "learning rate must be at least 0, got " + std::to_string(base));
  require(floor >= 0 && floor <= 1,
          "learning-rate floor must be between 0 and 1, got " + std::to_string(floor));
  require(factor > 0 && factor <= 1,
          "learning-rate factor must be above 0 and at most 1, got " + std::to_string(factor));
  require(warm_up >= 0, "warm-up must be at least 0 updates, got " + std::to_string(warm_up));
  require_count("total_updates", total_updates);
  require_count("every", every);
  require_count("decay", decay);
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

double scaled_with_batch(double rate,
                         std::int64_t samples,
                         std::int64_t base,
                         BatchScaling scaling) {
  require(samples >= 1 && base >= 1, [&] {
    return "a learning rate is scaled from one size of mini-batch to another, each at least 1, "
           "got " +
           std::to_string(base) + " and " + std::to_string(samples);
  });
  const double ratio = static_cast<double>(samples) / static_cast<double>(base);
  return rate * (scaling == BatchScaling::Linear ? ratio : std::sqrt(ratio));
}

}  // namespace millrace
