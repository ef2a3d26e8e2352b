// The metrics of one schedule as text and JSON.
#include "cli/plan/figures.hpp"

#include <algorithm>
#include <fmt/format.h>

#include "core/names.hpp"
#include "millrace/scheduler/plan/passes.hpp"

namespace millrace::cli {

namespace {

constexpr Names<Rule, 11> kRules = {"rule",
                                    {{{"placement", Rule::Placement},
                                      {"completeness", Rule::Completeness},
                                      {"weight after input", Rule::WeightAfterInput},
                                      {"pairs", Rule::Pairs},
                                      {"order", Rule::Order},
                                      {"messages", Rule::Messages},
                                      {"deadlock", Rule::Deadlock},
                                      {"capacity", Rule::Capacity},
                                      {"memory", Rule::Memory},
                                      {"accumulation", Rule::Accumulation},
                                      {"loss weight", Rule::LossWeight}}}};

nlohmann::json to_json(const RankReport& rank) {
  nlohmann::json all = record_json(rank);
  all["idle"] = record_json(rank.idle);
  all["idle_overlapped"] = record_json(rank.idle_overlapped);
  return all;
}

}  // namespace

std::string name_of(Rule rule) {
  return std::string(kRules.of(rule));
}

std::string metric_line(std::string_view title, const std::string& value, std::string_view help) {
  return fmt::format("{:<23} {:>12}  {}\n", title, value, help);
}

std::string depths_text(const std::vector<ChannelCapacity>& channels) {
  if (channels.empty()) return "";
  int minimal = 1, sufficient = 1;
  for (const ChannelCapacity& channel : channels) {
    minimal = std::max(minimal, channel.minimal);
    sufficient = std::max(sufficient, channel.sufficient);
  }
  return fmt::format(
      "queued messages per channel: at most {}, room for {} is enough (each channel: --json)\n",
      sufficient,
      minimal);
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
  using Field = ResultField<Report>;
  const Report& report = figures.report;
  nlohmann::json all = record_json(report);
  for (const Field& field : result_fields<Report>())
    if (field.is_in(Field::PerPass) && figures.passes > 1) all[field.name] = nullptr;
  for (const RankReport& rank : report.ranks) all["per_rank"].push_back(to_json(rank));
  all["capacity"] = to_json(figures.channels);
  all["valid"] = figures.violations.empty();
  if (report.sums.longest > 0) all["sums"] = record_json(report.sums);
  return all;
}

nlohmann::json identity_json(const Program& program) {
  const Shape& shape = program.shape;
  return {{"name", program.name},
          {"p", shape.ranks},
          {"m", shape.micro_batches},
          {"v", shape.chunks()},
          {"q", shape.slices},
          {"recompute", describe_recompute(program)}};
}

std::string to_string(const Violation& violation, const Program& program) {
  std::string text = "rule " + std::to_string(static_cast<int>(violation.rule)) + " (" +
                     name_of(violation.rule) + "), rank " + std::to_string(violation.rank.value);
  const std::size_t rank = violation.rank.index();
  if (rank < program.ranks.size() && violation.position < program.ranks[rank].size())
    text += ", action " + std::to_string(violation.position) + " (" +
            millrace::to_string(program.ranks[rank][violation.position]) + ")";
  return text + ": " + violation.message;
}

}  // namespace millrace::cli
