// A prediction next to a measurement. The output names the costs of the prediction.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/files.hpp"
#include "cli/plan/figures.hpp"
#include "cli/plan/progress.hpp"
#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/draw.hpp"
#include "millrace/scheduler/plan/passes.hpp"

namespace millrace::cli {

namespace {

/// In units: ticks_per_unit becomes 1.
void in_units(std::vector<double>& ticks, double ticks_per_unit) {
  for (double& each : ticks) each /= ticks_per_unit;
}

/// A timeline in units that begins at 0.
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

/// What ran, and when.
struct Measured {
  Program program;
  Timeline timeline;
};

/// The plan as it was executed: ranks that exchange messages ran it lowered, one process did not.
Measured read_run(Program program, const std::string& trace) {
  const std::string text = read_file("the trace", trace, kTraceLimit);
  ParsedTimeline read = read_trace(text, program);
  if (read.timeline) return {std::move(program), aligned(std::move(*read.timeline))};
  const std::string fault = trace + ":" + to_string(read.diagnostics.front());
  if (Graph(program).has_messages()) throw DataError(fault);
  Program lowered = insert_messages(insert_reductions(program));
  read = read_trace(text, lowered);
  if (!read.timeline) throw DataError(fault);
  return {std::move(lowered), aligned(std::move(*read.timeline))};
}

/// Mean of what was measured, by op, stage and slice, in seconds; links as given.
Cost measured_cost(const Program& program, const Timeline& measured, const Cost& given) {
  Cost cost = given;
  cost.latency /= given.ticks_per_unit;
  in_units(cost.link_latency, given.ticks_per_unit);
  cost.bytes_per_tick *= given.ticks_per_unit;
  in_units(cost.link_bytes_per_tick, 1 / given.ticks_per_unit);
  cost.ticks_per_unit = 1;
  cost.rank_speed.clear();  // measured on the rank itself
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
  return cost;
}

/// Sums over one kind of op: lengths and starts, simulated and measured.
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

struct TraceComparison {
  std::map<Op, Residual> ops;
  std::map<std::pair<Op, Stage>, Residual> stages;
  std::vector<Residual> ranks;
};

TraceComparison compared(const Program& program,
                         const Timeline& simulated,
                         const Timeline& measured) {
  TraceComparison result;
  result.ranks.resize(program.ranks.size());
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank)
    for (std::size_t i = 0; i < program.ranks[rank].size(); ++i) {
      const Action& action = program.ranks[rank][i];
      if (!is_compute(action.op)) continue;
      const Interval& predicted = simulated.ranks[rank][i];
      const Interval& seen = measured.ranks[rank][i];
      result.ops[action.op].add(predicted, seen);
      result.stages[{action.op, action.stage}].add(predicted, seen);
      result.ranks[rank].add(predicted, seen);
    }
  return result;
}

/// Measured less simulated; 0 where they differ only by the order of additions.
double residual_of(const Residual& it) {
  const double residual = it.measured - it.simulated;
  return std::abs(residual) <= 1e-12 * std::abs(it.measured) ? 0 : residual;
}

/// Where measured makespan less simulated comes from; the parts add up to it.
struct Causes {
  double passes = 0;   ///< passes that take longer, on average, than the costs say
  double spread = 0;   ///< passes of one kind that do not all take the same time
  double between = 0;  ///< what lies between passes beyond what was simulated
};

/// `means`: the costs as measured; `predicted` was simulated with others, or with these.
Causes causes_of(const Graph& graph,
                 const Cost& means,
                 const Timeline& measured,
                 const Report& predicted,
                 const Report& seen) {
  const double by_means = report(graph, means, timeline_of(graph, means)).makespan;
  const auto run = simulate_as_measured(graph, means, measured);
  const double by_passes = report(graph, means, std::get<Timeline>(run)).makespan;
  return {by_means - predicted.makespan, by_passes - by_means, seen.makespan - by_passes};
}

std::string name_of(const std::pair<Op, Stage>& key) {
  return std::to_string(key.second.value) + std::string(letters(key.first));
}

std::vector<std::string> residual_row(const std::string& name, const Residual& it, int divisor) {
  const double n = std::max(divisor, 1);
  return {name,
          std::to_string(it.count),
          brief(it.simulated / n),
          brief(it.measured / n),
          brief(residual_of(it) / n),
          brief(it.start / std::max(it.count, 1)),
          brief(it.worst_start)};
}

nlohmann::json to_json(const Residual& it) {
  const double n = std::max(it.count, 1);
  return {{"count", it.count},
          {"simulated", it.simulated},
          {"measured", it.measured},
          {"residual", residual_of(it)},
          {"mean_start_residual", it.start / n},
          {"worst_start_residual", it.worst_start}};
}

/// Both timelines on one scale: the longer one takes the whole width.
void print_pictures(const Program& program, const Timeline& simulated, const Timeline& measured) {
  constexpr double width = 90;
  const auto length = [](const Timeline& timeline) {
    double end = 0;
    for (const auto& rank : timeline.ranks)
      for (const Interval& time : rank) end = std::max(end, time.end);
    return end;
  };
  const double longest = std::max(length(simulated), length(measured));
  for (const auto& [title, timeline] :
       {std::pair("simulated", &simulated), std::pair("measured", &measured)}) {
    AsciiOptions options;
    options.columns = 10 + static_cast<int>(std::lround(width * length(*timeline) / longest));
    std::cout << '\n' << title << '\n' << draw_ascii(program, *timeline, options);
  }
}

/// The ratio to three decimals.
std::string times_as_long(double seen, double predicted) {
  return predicted > 0 ? plain(std::round(seen / predicted * 1000) / 1000) : "-";
}

void print_causes(const Causes& causes) {
  std::cout << '\n'
            << table(
                   {{"measured - simulated", brief(causes.passes + causes.spread + causes.between)},
                    {"  passes longer than the costs say", brief(causes.passes)},
                    {"  passes of one kind that differ", brief(causes.spread)},
                    {"  between passes: dispatch, messages, waiting", brief(causes.between)}});
}

void print_comparison(const TraceComparison& result,
                      const Report& predicted,
                      const Report& seen,
                      const Causes& causes) {
  std::cout << table({{"", "simulated", "measured", "measured / simulated"},
                      {"makespan",
                       brief(predicted.makespan),
                       brief(seen.makespan),
                       times_as_long(seen.makespan, predicted.makespan)},
                      {"bubble",
                       percent(predicted.bubble_makespan_ratio()),
                       percent(seen.bubble_makespan_ratio())}});
  print_causes(causes);
  const std::vector<std::string> head = {
      "count", "simulated", "measured", "residual", "mean late", "worst late"};
  std::vector<std::vector<std::string>> ops = {{"op (mean time)"}},
                                        stages = {{"op of stage (mean time)"}},
                                        ranks = {{"rank (busy time)"}};
  for (auto* rows : {&ops, &stages, &ranks})
    rows->front().insert(rows->front().end(), head.begin(), head.end());
  for (const auto& [op, it] : result.ops)
    ops.push_back(residual_row(std::string(letters(op)), it, it.count));
  for (const auto& [key, it] : result.stages)
    stages.push_back(residual_row(name_of(key), it, it.count));
  for (std::size_t rank = 0; rank < result.ranks.size(); ++rank)
    ranks.push_back(residual_row(std::to_string(rank), result.ranks[rank], 1));
  std::cout << "\nTimes in seconds. Residual: measured - simulated; late: measured start - "
               "simulated start.\n"
            << '\n'
            << table(ops) << '\n'
            << table(stages) << '\n'
            << table(ranks);
}

void print_json(const Program& program,
                const TraceComparison& result,
                const Report& predicted,
                const Report& seen,
                const Causes& causes,
                const std::string& costs) {
  nlohmann::json all = {
      {"makespan", {{"simulated", predicted.makespan}, {"measured", seen.makespan}}},
      {"bubble_makespan_ratio",
       {{"simulated", predicted.bubble_makespan_ratio()},
        {"measured", seen.bubble_makespan_ratio()}}},
      {"residual",
       {{"passes", causes.passes}, {"spread", causes.spread}, {"between_passes", causes.between}}},
      {"costs", costs}};
  all.update(identity_json(program));
  for (const auto& [op, it] : result.ops) all["per_op"][std::string(letters(op))] = to_json(it);
  for (const auto& [key, it] : result.stages) all["per_stage"][name_of(key)] = to_json(it);
  for (const Residual& it : result.ranks) all["per_rank"].push_back(to_json(it));
  std::cout << all.dump() << '\n';
}

/// An empty list is the default of times.
std::string listed(const std::vector<double>& list) {
  if (list.empty()) return "1";
  std::string text;
  for (const double value : list) text += (text.empty() ? "" : ",") + plain(value);
  return text;
}

/// Which costs the simulation has: "the given times: F 2, I 1, W 1, latency 0".
std::string source_of(const PlanOptions& options) {
  std::string text = "the measured mean time of every op and stage";
  if (!options.costs_file.empty()) text = "the costs of " + options.costs_file;
  const Costs& costs = options.costs;
  if (states_times_or_memory(costs))
    text = "the given times: F " + listed(costs.forward) + ", I " + listed(costs.input) + ", W " +
           listed(costs.weight);
  if (!costs.latency.empty()) text += ", latency " + listed(costs.latency);
  if (!costs.bandwidth.empty())
    text += ", bandwidth " + listed(costs.bandwidth) + (costs.contention ? " shared" : "");
  if (!costs.rank_speed.empty()) text += ", rank speed " + listed(costs.rank_speed);
  if (costs.cores)
    text += ", " + std::to_string(*costs.cores) + (costs.cores == 1 ? " processor" : " processors");
  return text;
}

}  // namespace

void compare_with_trace(const std::string& plan,
                        const std::string& trace,
                        const PlanOptions& options) {
  const bool by_means = !states_times_or_memory(options.costs) && options.costs_file.empty();
  require(!by_means || options.costs.rank_speed.empty(),
          "--rank-speed goes with --f, --i, --w or --costs; measured times are of the rank itself");
  PlanProgress progress("compare");
  progress.at("reading");
  const auto [program, measured] = read_run(program_of(plan, options), trace);
  const Cost given = cost_of(program.shape, options);
  const Cost means = measured_cost(program, measured, given);
  const Cost& cost = by_means ? means : given;
  progress.at("simulating");
  const Graph graph(program);
  const Timeline simulated = timeline_of(graph, cost);
  const Report predicted = report(graph, cost, simulated);
  const Report seen = report(graph, means, measured);
  const Causes causes = causes_of(graph, means, measured, predicted, seen);
  const Timeline comparable = aligned(simulated);
  const TraceComparison result = compared(program, comparable, measured);
  const std::vector<OutputFile> files = outputs(options, program, means, measured);
  progress.end();
  if (options.json) {
    print_json(program, result, predicted, seen, causes, source_of(options));
  } else if (!prints_file(options)) {
    std::cout << "Simulated with " << source_of(options) << ".\n\n";
    print_comparison(result, predicted, seen, causes);
    print_pictures(program, comparable, measured);
  }
  write_files(files);
}

}  // namespace millrace::cli
