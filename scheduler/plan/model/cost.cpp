// Ticks of actions, the check that a cost fits a shape, and costs given per full stage.
#include "millrace/scheduler/plan/cost.hpp"

#include <algorithm>
#include <numeric>
#include <string>

#include "millrace/core/error.hpp"
#include "plan/model/validate.hpp"
#include "plan/text/number_text.hpp"

namespace millrace {

namespace {

void require_size(const std::vector<double>& values, std::size_t wanted, const char* what) {
  require(values.size() == wanted,
          "Cost::" + std::string(what) + " has " + std::to_string(values.size()) +
              " values; the shape needs " + std::to_string(wanted));
}

void require_size_or_none(const std::vector<double>& values, std::size_t wanted, const char* what) {
  if (!values.empty()) require_size(values, wanted, what);
}

void require_not_negative(const std::vector<double>& values, const char* what) {
  for (const double value : values)
    require(
        value >= 0,
        "Cost::" + std::string(what) + " holds " + plan::number_text(value) + "; it is at least 0");
}

}  // namespace

double Cost::ticks(const Action& action) const {
  switch (action.op) {
    case Op::Forward:
      return forward[at(action)];
    case Op::Backward:
      if (!backward.empty()) return backward[at(action)];
      return backward_input[at(action)] + backward_weight[at(action)];
    case Op::BackwardInput:
      return backward_input[at(action)];
    case Op::BackwardWeight:
      return backward_weight[at(action)];
    case Op::Recompute:
      return recompute.empty() ? forward[at(action)] : recompute[at(action)];
    case Op::OptimizerStep:
      return optimizer;
    case Op::SendForward:
    case Op::RecvForward:
    case Op::SendBackward:
    case Op::RecvBackward:
    case Op::ReduceGrad:
      return 0;
  }
  return 0;
}

bool Cost::adds_gradients(const Shape& shape) const {
  const bool sized = std::ranges::any_of(gradient_bytes, [](double bytes) { return bytes > 0; });
  return data_parallel > 1 || (shape.replicas() > 1 && sized);
}

void Cost::require_fits(const Shape& shape) const {
  const auto stages = static_cast<std::size_t>(shape.stages());
  const auto ranks = static_cast<std::size_t>(shape.ranks);
  const auto pieces = stages * static_cast<std::size_t>(shape.slices);
  require(slices == shape.slices,
          "Cost::slices is " + std::to_string(slices) + "; the shape has " +
              std::to_string(shape.slices));
  require_size(forward, pieces, "forward");
  require_size(backward_input, pieces, "backward_input");
  require_size(backward_weight, pieces, "backward_weight");
  require_size_or_none(backward, pieces, "backward");
  require_size_or_none(recompute, pieces, "recompute");
  require_size_or_none(link_latency, ranks * ranks, "link_latency");
  require_size_or_none(link_bytes_per_tick, ranks * ranks, "link_bytes_per_tick");
  require_size_or_none(rank_speed, ranks, "rank_speed");
  for (const auto* memory : {&memory_forward,
                             &memory_forward_peak,
                             &memory_input_peak,
                             &memory_input,
                             &memory_weight,
                             &memory_boundary})
    require_size_or_none(*memory, stages, "memory_*");
  require_size_or_none(gradient_bytes, stages, "gradient_bytes");
  require_size_or_none(boundary_bytes, stages - 1, "boundary_bytes");
  for (const auto* times :
       {&forward, &backward_input, &backward_weight, &backward, &recompute, &link_latency})
    require_not_negative(*times, "times");
  require_not_negative(gradient_bytes, "gradient_bytes");
  require_not_negative(boundary_bytes, "boundary_bytes");
  require(latency >= 0 && optimizer >= 0 && after_passes >= 0 && bytes_per_tick >= 0 &&
              message_bytes >= 0,
          "Cost: latency, optimizer, after_passes, bytes_per_tick and message_bytes are at least "
          "0");
  require(data_parallel >= 1,
          "Cost::data_parallel is " + std::to_string(data_parallel) +
              "; a pipeline is trained in 1 copy or more");
  require(passes >= 1, [&] {
    return "Cost::passes is " + std::to_string(passes) + "; a step has at least one pass";
  });
  require(cores >= 0,
          "Cost::cores is " + std::to_string(cores) +
              "; it is 0 (a processor per rank) or the number of processors");
  for (const double speed : rank_speed)
    require(speed > 0,
            "Cost::rank_speed holds " + plan::number_text(speed) + "; a speed is above 0");
}

double Cost::delay(Rank source, Rank destination, int ranks) const {
  if (link_latency.empty()) return latency;
  return link_latency[source.index() * static_cast<std::size_t>(ranks) + destination.index()];
}

double Cost::rate(Rank source, Rank destination, int ranks) const {
  if (link_bytes_per_tick.empty()) return bytes_per_tick;
  return link_bytes_per_tick[source.index() * static_cast<std::size_t>(ranks) +
                             destination.index()];
}

double Cost::transfer(Rank source, Rank destination, int ranks, Stage feeding) const {
  const double per_tick = rate(source, destination, ranks);
  const double bytes = boundary_bytes.empty() ? message_bytes : boundary_bytes[feeding.index()];
  return per_tick == 0 ? 0 : bytes / slices / per_tick;
}

double Cost::sum_transfer(Stage stage, Rank rank, int ranks) const {
  const double bytes = rate(rank, rank, ranks);
  if (data_parallel == 1 || bytes == 0 || gradient_bytes.empty()) return 0;
  // Divided once, so that whole numbers stay whole where the result is.
  return gradient_bytes[stage.index()] * 2 * (data_parallel - 1) / (data_parallel * bytes);
}

double Cost::sum_delay(Rank rank, int ranks) const {
  return data_parallel == 1 ? 0 : 2 * delay(rank, rank, ranks);
}

double Cost::replica_transfer(Stage stage, Rank source, Rank destination, int ranks) const {
  const double bytes = rate(source, destination, ranks);
  if (source == destination || bytes == 0 || gradient_bytes.empty()) return 0;
  return gradient_bytes[stage.index()] / bytes;
}

Cost Cost::of_full_stage(
    const Shape& shape, double forward, double input, double weight, double latency) {
  plan::validate(shape);
  // A stage is p / S of a full stage; in lowest terms share / parts. One tick is 1 / (parts q).
  const int common = std::gcd(shape.ranks, shape.stages());
  const int ranks_in_lowest_terms = shape.ranks / common;
  const double share = ranks_in_lowest_terms;
  const int parts = shape.stages() / common;
  const auto stages = static_cast<std::size_t>(shape.stages());
  const auto pieces = stages * static_cast<std::size_t>(shape.slices);
  Cost cost;
  cost.slices = shape.slices;
  cost.ticks_per_unit = double{1} * parts * shape.slices;
  cost.forward.assign(pieces, forward * share);
  cost.backward_input.assign(pieces, input * share);
  cost.backward_weight.assign(pieces, weight * share);
  cost.latency = latency * cost.ticks_per_unit;
  cost.memory_forward.assign(stages, share / parts);
  cost.memory_input_peak.assign(stages, 0);
  cost.memory_input.assign(stages, 0);
  cost.memory_weight.assign(stages, -share / parts);
  return cost;
}

}  // namespace millrace
