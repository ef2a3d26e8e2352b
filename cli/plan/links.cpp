// Links and ranks from the options: latency and bandwidth of all links or of each, contention,
// speeds.
#include <cmath>

#include "cli/plan/options.hpp"
#include "millrace/core/error.hpp"

namespace millrace::cli {

namespace {

void require_length(const char* option, const NumberList& list, int ranks) {
  const std::size_t size = list.values.size();
  const auto p = static_cast<std::size_t>(ranks);
  require(size == 1 || size == p * p,
          std::string(option) + " has " + std::to_string(size) +
              " values; allowed are 1 or one per ordered pair of ranks, p x p = " +
              std::to_string(p * p));
}

void set_latency(Cost& cost, const NumberList& list, int ranks) {
  require_length("--latency", list, ranks);
  // Whole ticks where the decimals allow it: the scale of a typed cost holds those of --latency.
  const auto ticks = [&](double value) {
    const double exact = value * cost.ticks_per_unit;
    return std::abs(exact - std::round(exact)) < 1e-6 ? std::round(exact) : exact;
  };
  cost.link_latency.clear();
  cost.latency = ticks(list.values.front());
  if (list.values.size() == 1) return;
  for (const double value : list.values) cost.link_latency.push_back(ticks(value));
}

void set_bandwidth(Cost& cost, const PlanOptions& options, int ranks) {
  const NumberList& list = *options.bandwidth;
  require_length("--bandwidth", list, ranks);
  cost.bytes_per_tick = list.values.front() / cost.ticks_per_unit;
  cost.link_bytes_per_tick.clear();
  if (list.values.size() == 1) return;
  for (const double value : list.values)
    cost.link_bytes_per_tick.push_back(value / cost.ticks_per_unit);
}

}  // namespace

void set_links(Cost& cost, const PlanOptions& options, int ranks) {
  require(options.bandwidth.has_value() == options.message_bytes.has_value(),
          options.bandwidth ? "--bandwidth is given without --message-bytes; they go together"
                            : "--message-bytes is given without --bandwidth; they go together");
  if (options.latency) set_latency(cost, *options.latency, ranks);
  if (options.bandwidth) set_bandwidth(cost, options, ranks);
  if (options.message_bytes) cost.message_bytes = *options.message_bytes;
  require(!options.contention || cost.bytes_per_tick > 0 || !cost.link_bytes_per_tick.empty(),
          "--contention is given without --bandwidth; only a link with a bandwidth can be busy");
  cost.contention = options.contention;
  if (!options.rank_speed) return;
  const std::size_t speeds = options.rank_speed->values.size();
  require(speeds == static_cast<std::size_t>(ranks),
          "--rank-speed has " + value_count(speeds) + "; allowed are p = " + std::to_string(ranks));
  cost.rank_speed = options.rank_speed->values;
}

}  // namespace millrace::cli
