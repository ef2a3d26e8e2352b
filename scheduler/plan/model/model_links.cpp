// Links and ranks of a model's costs: latency and bandwidth of all links or of each, contention,
// speeds.
#include "plan/model/model_links.hpp"

#include <cmath>

#include "millrace/core/error.hpp"

namespace millrace::plan {

namespace {

void require_links(const char* name, const std::vector<double>& list, int ranks) {
  const auto p = static_cast<std::size_t>(ranks);
  require(list.size() == 1 || list.size() == p * p,
          named(name) + (" has " + value_count(list.size()) +
                         "; allowed are 1 or one per ordered pair of ranks, p x p = " +
                         std::to_string(p * p)));
}

void set_latency(Cost& cost, const std::vector<double>& list, int ranks) {
  require_links("latency", list, ranks);
  // Whole ticks where the decimals allow it: the scale of given times holds those of latencies.
  const auto ticks = [&](double value) {
    const double exact = value * cost.ticks_per_unit;
    return std::abs(exact - std::round(exact)) < 1e-6 ? std::round(exact) : exact;
  };
  cost.link_latency.clear();
  cost.latency = ticks(list.front());
  if (list.size() == 1) return;
  for (const double value : list) cost.link_latency.push_back(ticks(value));
}

void set_bandwidth(Cost& cost, const std::vector<double>& list, int ranks) {
  require_links("bandwidth", list, ranks);
  cost.bytes_per_tick = list.front() / cost.ticks_per_unit;
  cost.link_bytes_per_tick.clear();
  if (list.size() == 1) return;
  for (const double value : list) cost.link_bytes_per_tick.push_back(value / cost.ticks_per_unit);
}

[[noreturn]] void refuse_alone(const char* given, const char* missing) {
  throw InvalidParameter(named(given) + " is given without " + named(missing) +
                         "; they go together");
}

}  // namespace

std::string value_count(std::size_t values) {
  return std::to_string(values) + (values == 1 ? " value" : " values");
}

void set_links(Cost& cost, const ModelCosts& costs, int ranks) {
  const bool adds = !costs.gradient_bytes.empty() || (costs.data_parallel > 1 && costs.file &&
                                                      !costs.file->cost.gradient_bytes.empty());
  if (!costs.bandwidth.empty() && !costs.message_bytes && !adds)
    refuse_alone("bandwidth", costs.data_parallel > 1 ? "gradient_bytes" : "message_bytes");
  if (costs.bandwidth.empty() && costs.message_bytes) refuse_alone("message_bytes", "bandwidth");
  if (!costs.latency.empty()) set_latency(cost, costs.latency, ranks);
  if (!costs.bandwidth.empty()) set_bandwidth(cost, costs.bandwidth, ranks);
  if (costs.message_bytes) cost.message_bytes = *costs.message_bytes;
  require(!costs.contention || cost.bytes_per_tick > 0 || !cost.link_bytes_per_tick.empty(),
          named("contention") + " is given without " + named("bandwidth") +
              "; only a link with a bandwidth can be busy");
  cost.contention = costs.contention;
  if (costs.rank_speed.empty()) return;
  require(costs.rank_speed.size() == static_cast<std::size_t>(ranks),
          named("rank_speed") + (" has " + value_count(costs.rank_speed.size()) +
                                 "; allowed are p = " + std::to_string(ranks)));
  cost.rank_speed = costs.rank_speed;
}

}  // namespace millrace::plan
