// millrace compare: schedules against each other, or a simulated timeline against a measured one.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/figures.hpp"
#include "cli/files.hpp"
#include "cli/plan_options.hpp"
#include "cli/verbs.hpp"
#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/draw.hpp"

namespace millrace::cli {

namespace {

std::vector<std::string> row_of(const std::string& name, const Figures& figures) {
  const Report& report = figures.report;
  return {name,
          plain(report.makespan),
          plain(report.bubble_makespan),
          percent(report.bubble_makespan_ratio()),
          plain(report.span),
          plain(report.bubble_span),
          percent(report.bubble_span_ratio()),
          plain(largest(report, &RankReport::peak_activation)),
          plain(largest(report, &RankReport::peak_bytes)),
          figures.order.ascending ? "yes" : "no",
          figures.violations.empty() ? "yes" : "no"};
}

void compare_schedules(const std::string& subjects, const PlanOptions& options) {
  std::vector<std::vector<std::string>> rows = {{"schedule",
                                                 "makespan",
                                                 "bubble",
                                                 "",
                                                 "span",
                                                 "bubble",
                                                 "",
                                                 "peak activation",
                                                 "peak memory",
                                                 "same bits",
                                                 "valid"}};
  nlohmann::json all = nlohmann::json::object();
  std::size_t from = 0;
  while (from <= subjects.size()) {
    const std::size_t comma = std::min(subjects.find(',', from), subjects.size());
    const std::string subject = subjects.substr(from, comma - from);
    const Program program = comparable_program_of(subject, options);
    const Cost cost = cost_of(program.shape, options);
    const Graph graph(program);
    const Figures figures = figures_of(graph, cost, timeline_of(graph, cost), options);
    rows.push_back(row_of(program.name, figures));
    all[subject] = to_json(figures);
    from = comma + 1;
  }
  std::cout << (options.json ? all.dump() + "\n" : table(rows));
}

bool default_times(const PlanOptions& options) {
  const auto one = [](const NumberList& list) { return list.values == std::vector<double>{1}; };
  return options.costs_file.empty() && one(options.forward) && one(options.input) &&
         one(options.weight);
}

// Mean of what was measured, by op, stage and slice, in seconds.
Cost measured_cost(const Program& program, const Timeline& measured, const PlanOptions& options) {
  Cost cost = cost_of(program.shape, options);
  cost.ticks_per_unit = 1;
  cost.backward = cost.backward_input;
  cost.recompute = cost.forward;
  std::map<std::pair<Op, std::size_t>, std::pair<double, int>> sums;
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank)
    for (std::size_t i = 0; i < program.ranks[rank].size(); ++i) {
      const Action& action = program.ranks[rank][i];
      if (!is_compute(action.op)) continue;
      auto& [sum, times] = sums[{action.op, cost.at(action)}];
      sum += measured.ranks[rank][i].end - measured.ranks[rank][i].start;
      ++times;
    }
  const auto fill = [&](std::vector<double>& ticks, Op op) {
    for (std::size_t i = 0; i < ticks.size(); ++i) {
      const auto found = sums.find({op, i});
      ticks[i] = found == sums.end() ? 0 : found->second.first / found->second.second;
    }
  };
  fill(cost.forward, Op::Forward);
  fill(cost.backward_input, Op::BackwardInput);
  fill(cost.backward_weight, Op::BackwardWeight);
  fill(cost.backward, Op::Backward);
  fill(cost.recompute, Op::Recompute);
  cost.latency = options.latency.values.front();
  return cost;
}

// A timeline in units that begins at 0.
Timeline aligned(Timeline timeline) {
  double start = INFINITY;
  for (const auto& rank : timeline.ranks)
    for (const Interval& time : rank) start = std::min(start, time.start);
  for (auto& rank : timeline.ranks)
    for (Interval& time : rank) {
      time.start = (time.start - start) / timeline.ticks_per_unit;
      time.end = (time.end - start) / timeline.ticks_per_unit;
    }
  timeline.ticks_per_unit = 1;
  return timeline;
}

// Sums over one kind of op: lengths and starts, simulated and measured.
struct Residual {
  int count = 0;
  double simulated = 0, measured = 0;
  double start = 0, worst_start = 0;  // measured start - simulated start

  void add(const Interval& predicted, const Interval& seen) {
    ++count;
    simulated += predicted.end - predicted.start;
    measured += seen.end - seen.start;
    const double late = seen.start - predicted.start;
    start += late;
    if (std::abs(late) > std::abs(worst_start)) worst_start = late;
  }
};

struct Comparison {
  std::map<Op, Residual> ops;
  std::vector<Residual> ranks;
};

Comparison compared(const Program& program, const Timeline& simulated, const Timeline& measured) {
  Comparison result;
  result.ranks.resize(program.ranks.size());
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank)
    for (std::size_t i = 0; i < program.ranks[rank].size(); ++i) {
      const Op op = program.ranks[rank][i].op;
      if (!is_compute(op)) continue;
      result.ops[op].add(simulated.ranks[rank][i], measured.ranks[rank][i]);
      result.ranks[rank].add(simulated.ranks[rank][i], measured.ranks[rank][i]);
    }
  return result;
}

std::vector<std::string> residual_row(const std::string& name, const Residual& it, int divisor) {
  const double n = std::max(divisor, 1);
  return {name,
          std::to_string(it.count),
          plain(it.simulated / n),
          plain(it.measured / n),
          plain((it.measured - it.simulated) / n),
          plain(it.start / std::max(it.count, 1)),
          plain(it.worst_start)};
}

nlohmann::json to_json(const Residual& it) {
  const double n = std::max(it.count, 1);
  return {{"count", it.count},
          {"simulated", it.simulated},
          {"measured", it.measured},
          {"residual", it.measured - it.simulated},
          {"mean_start_residual", it.start / n},
          {"worst_start_residual", it.worst_start}};
}

void print_comparison(const Comparison& result, const Report& predicted, const Report& seen) {
  std::cout << table({{"", "simulated", "measured", "measured / simulated"},
                      {"makespan",
                       plain(predicted.makespan),
                       plain(seen.makespan),
                       plain(seen.makespan / predicted.makespan)},
                      {"bubble",
                       percent(predicted.bubble_makespan_ratio()),
                       percent(seen.bubble_makespan_ratio())}});
  const std::vector<std::string> head = {
      "count", "simulated", "measured", "residual", "mean start residual", "worst start residual"};
  std::vector<std::vector<std::string>> ops = {{"op (mean time)"}}, ranks = {{"rank (busy time)"}};
  for (auto* rows : {&ops, &ranks})
    rows->front().insert(rows->front().end(), head.begin(), head.end());
  for (const auto& [op, it] : result.ops) ops.push_back(residual_row(letters(op), it, it.count));
  for (std::size_t rank = 0; rank < result.ranks.size(); ++rank)
    ranks.push_back(residual_row(std::to_string(rank), result.ranks[rank], 1));
  std::cout << '\n' << table(ops) << '\n' << table(ranks);
}

void compare_with_trace(const std::string& plan,
                        const std::string& trace,
                        const PlanOptions& options) {
  const Program program = program_of(plan, options);
  ParsedTimeline read = read_trace(read_file("the trace", trace), program);
  if (!read.timeline) throw DataError(trace + ":" + to_string(read.diagnostics.front()));
  const Timeline measured = aligned(std::move(*read.timeline));
  const bool by_means = default_times(options);
  const Cost cost =
      by_means ? measured_cost(program, measured, options) : cost_of(program.shape, options);
  const Graph graph(program);
  const Timeline simulated = timeline_of(graph, cost);
  Cost in_units = measured_cost(program, measured, options);
  const Report predicted = report(graph, cost, simulated);
  const Report seen = report(graph, in_units, measured);
  const Comparison result = compared(program, aligned(simulated), measured);
  write_outputs(options, program, in_units, measured);
  if (options.json) {
    nlohmann::json all = {
        {"makespan", {{"simulated", predicted.makespan}, {"measured", seen.makespan}}},
        {"costs", by_means ? "measured means" : "given"}};
    for (const auto& [op, it] : result.ops) all["per_op"][letters(op)] = to_json(it);
    for (const Residual& it : result.ranks) all["per_rank"].push_back(to_json(it));
    std::cout << all.dump() << '\n';
    return;
  }
  if (prints_file(options)) return;
  if (by_means) std::cout << "Simulated with the measured mean time of every op and stage.\n\n";
  print_comparison(result, predicted, seen);
}

}  // namespace

void add_compare(CLI::App& app) {
  CLI::App* verb = app.add_subcommand(
      "compare", "Schedules side by side, or a plan's simulation and a measured trace");
  auto subjects = std::make_shared<std::vector<std::string>>();
  auto options = std::make_shared<PlanOptions>();
  verb->add_option("subjects", *subjects, "S1,S2,... or PLAN TRACE.json")
      ->required()
      ->expected(1, 2);
  add_plan_options(*verb, *options);
  verb->callback([subjects, options] {
    if (subjects->size() == 2) return compare_with_trace((*subjects)[0], (*subjects)[1], *options);
    for (const auto& [option, path] : {std::pair("--csv", &options->csv),
                                       {"--svg", &options->svg},
                                       {"--html", &options->html},
                                       {"--trace", &options->trace},
                                       {"--plan", &options->plan}})
      require(!*path, std::string(option) + " is of one schedule; compare writes none");
    compare_schedules(subjects->front(), *options);
  });
}

}  // namespace millrace::cli
