// Figures of a schedule; see figures.hpp.
#include "cli/plan/figures.hpp"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "millrace/scheduler/plan/recompute.hpp"

namespace millrace::cli {

namespace {

nlohmann::json to_json(const Idle& idle) {
  return {{"warm_up", idle.warm_up},
          {"drain", idle.drain},
          {"transfer", idle.transfer},
          {"imbalance", idle.imbalance},
          {"processor", idle.processor},
          {"dependency", idle.dependency}};
}

nlohmann::json to_json(const RankReport& rank) {
  return {{"busy", rank.busy},
          {"idle", to_json(rank.idle)},
          {"idle_overlapped", to_json(rank.idle_overlapped)},
          {"peak_activation", rank.peak_activation},
          {"peak_bytes", rank.peak_bytes}};
}

}  // namespace

std::string name_of(Rule rule) {
  switch (rule) {
    case Rule::Placement:
      return "placement";
    case Rule::Completeness:
      return "completeness";
    case Rule::WeightAfterInput:
      return "weight after input";
    case Rule::Pairs:
      return "pairs";
    case Rule::Order:
      return "order";
    case Rule::Messages:
      return "messages";
    case Rule::Deadlock:
      return "deadlock";
    case Rule::Capacity:
      return "capacity";
    case Rule::Memory:
      return "memory";
    case Rule::Accumulation:
      return "accumulation";
    case Rule::LossWeight:
      return "loss weight";
  }
  return "?";
}

nlohmann::json to_json(const std::vector<ChannelCapacity>& channels) {
  nlohmann::json all = nlohmann::json::array();
  for (const ChannelCapacity& channel : channels)
    all.push_back({{"source", channel.source.value},
                   {"destination", channel.destination.value},
                   {"direction", channel.direction == Direction::Forward ? "F" : "B"},
                   {"minimal", channel.minimal},
                   {"sufficient", channel.sufficient}});
  return all;
}

Figures figures_of(const Graph& graph,
                   const Cost& cost,
                   const Timeline& timeline,
                   const PlanOptions& options) {
  const Program& program = graph.program();
  Figures figures;
  figures.report = report(graph, cost, timeline);
  figures.channels = channel_capacities(graph);
  VerifyOptions checks;
  checks.memory_limit = memory_limits_of(options, program.shape.ranks, program.shape.stages());
  if (!checks.memory_limit.empty()) {
    checks.cost = cost;
  }
  figures.violations = verify(graph, checks);
  figures.order = accumulation(program);
  figures.passes = cost.passes;
  return figures;
}

nlohmann::json to_json(const Figures& figures) {
  const Report& report = figures.report;
  const auto of_pass = [&](double figure) {
    return figures.passes == 1 ? nlohmann::json(figure) : nlohmann::json();
  };
  nlohmann::json ranks = nlohmann::json::array();
  for (const RankReport& rank : report.ranks) ranks.push_back(to_json(rank));
  nlohmann::json all = {{"makespan", report.makespan},
                        {"step", report.step},
                        {"span", of_pass(report.span)},
                        {"span_asap", of_pass(report.span_asap)},
                        {"bubble_makespan", report.bubble_makespan},
                        {"bubble_makespan_ratio", report.bubble_makespan_ratio()},
                        {"bubble_span", of_pass(report.bubble_span)},
                        {"bubble_span_ratio", of_pass(report.bubble_span_ratio())},
                        {"per_rank", std::move(ranks)},
                        {"capacity", to_json(figures.channels)},
                        {"valid", figures.violations.empty()},
                        {"critical_path", report.critical_path}};
  if (report.sums.longest > 0)
    all["sums"] = {{"longest", report.sums.longest},
                   {"hidden", report.sums.hidden()},
                   {"exposed", report.sums.exposed}};
  return all;
}

nlohmann::json identity_json(const Program& program) {
  const Shape& shape = program.shape;
  return {{"name", program.name},
          {"p", shape.ranks},
          {"m", shape.micro_batches},
          {"v", shape.chunks()},
          {"q", shape.slices},
          {"recompute", recompute_text(recomputed_stages(program))}};
}

double largest(const Report& report, double RankReport::*member) {
  double most = 0;
  for (const RankReport& rank : report.ranks) most = std::max(most, rank.*member);
  return most;
}

std::string to_string(const Violation& violation, const Program& program) {
  std::string text = "rule " + std::to_string(static_cast<int>(violation.rule)) + " (" +
                     name_of(violation.rule) + "), rank " + std::to_string(violation.rank.value);
  const std::size_t rank = violation.rank.index();
  if (rank < program.ranks.size() && violation.position < program.ranks[rank].size())
    text += ", action " + std::to_string(violation.position) + " (" +
            millrace::to_string(program.ranks[rank][violation.position]) + ")";
  return text + ": " + violation.sentence;
}

}  // namespace millrace::cli
