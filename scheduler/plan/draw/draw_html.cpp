// The page: the schedule as data for the fixed script of pages.hpp.
#include <algorithm>
#include <map>

#include <nlohmann/json.hpp>

#include "millrace/scheduler/plan/graph.hpp"
#include "plan/draw/pages.hpp"
#include "plan/draw/picture.hpp"
#include "plan/model/stage_sums.hpp"
#include "plan/model/validate.hpp"

namespace millrace {

namespace {

using nlohmann::json;

// By op, then chunk: ground and text colour.
json colours(int chunks) {
  json all = json::array();
  for (int op = 0; op < kOps; ++op) {
    json shades = json::array();
    for (int chunk = 0; chunk < std::max(chunks, 1); ++chunk) {
      const picture::Colour shade = picture::shade(static_cast<Op>(op), chunk, chunks);
      shades.push_back({shade.hex(), shade.light() ? "#1d1d22" : "#ffffff"});
    }
    all.push_back(std::move(shades));
  }
  return all;
}

json memory(const Cost& cost, bool forward_only) {
  // Without a backward, a forward keeps nothing for it.
  return {{"forward", forward_only ? std::vector<double>() : cost.memory_forward},
          {"forwardPeak", forward_only ? std::vector<double>() : cost.memory_forward_peak},
          {"peak", cost.memory_input_peak},
          {"input", cost.memory_input},
          {"weight", cost.memory_weight},
          {"boundary", cost.memory_boundary}};
}

// One array per action, in the order of the script's constants; the last entry says which half of a
// pair that runs at once it is.
json actions(const Program& program, const Timeline& timeline) {
  const Graph graph(program);
  json ranks = json::array();
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    json list = json::array();
    const Node first = graph.first(Rank{static_cast<std::int32_t>(rank)});
    for (std::size_t i = 0; i < program.ranks[rank].size(); ++i) {
      const Action& action = program.ranks[rank][i];
      const Interval& time = timeline.ranks[rank][i];
      const auto producers = graph.producers(first + static_cast<Node>(i));
      list.push_back({static_cast<int>(action.op),
                      action.replica_number,
                      action.stage.value,
                      action.micro_batch.value,
                      action.slice.value,
                      0,
                      time.start,
                      time.end,
                      std::vector<Node>(producers.begin(), producers.end()),
                      0});
    }
    ranks.push_back(std::move(list));
  }
  const auto boxes = picture::boxes(program, timeline);
  for (std::size_t rank = 0; rank < boxes.size(); ++rank)
    for (const picture::Box& box : boxes[rank]) {
      ranks[rank][box.position][5] = box.chunk;
      ranks[rank][box.position][9] = box.upper ? 1 : box.lower ? 2 : 0;
    }
  return ranks;
}

// Rank and position of the two forwards of every skip arrow.
json skips(const Program& program, const Timeline& timeline) {
  json all = json::array();
  for (const auto& [from, to] : picture::skip_arrows(program, timeline))
    all.push_back({from.rank, from.position, to.rank, to.position});
  return all;
}

// Sums over copies of the pipeline, by rank and start: rank, position of the last B or W and of the
// REDUCE_GRAD, ticks on the link and of the latencies behind them, position of what the rank runs
// before it gives the sum to other ranks, and the sums of others that are awaited with it: their
// number, ticks on the link and latency.
json sums(const Program& program, const Cost& cost, double scale) {
  json all = json::array();
  if (!cost.adds_gradients(program.shape)) return all;
  const Graph graph(program);
  const plan::PlannedSums planned(graph, cost);
  for (const plan::PlannedSum& sum : planned.all()) {
    json others = json::array();
    for (const plan::AwaitedSum& awaited : planned.awaited_by(graph.action(sum.reduction)))
      if (planned.all()[awaited.sum].rank != sum.rank)
        others.push_back({awaited.sum, awaited.transfer * scale, awaited.delay * scale});
    all.push_back({sum.rank.value,
                   graph.position(sum.last),
                   graph.position(sum.reduction),
                   sum.transfer * scale,
                   sum.delay * scale,
                   graph.position(sum.before),
                   std::move(others)});
  }
  return all;
}

double longest(const Timeline& timeline) {
  double most = 0;
  for (const auto& rank : timeline.ranks)
    for (const Interval& time : rank) most = std::max(most, time.end - time.start);
  return most;
}

// Share of I in a full backward, over all stages.
double input_share(const Cost& cost) {
  double input = 0, weight = 0;
  for (const double ticks : cost.backward_input) input += ticks;
  for (const double ticks : cost.backward_weight) weight += ticks;
  return input + weight > 0 ? input / (input + weight) : 0.5;
}

}  // namespace

std::string draw_html(const Program& program,
                      const Timeline& timeline,
                      const Cost& cost,
                      const std::string& title,
                      const std::vector<Drawing>& others) {
  std::map<int, const Drawing*> by_count;
  const Drawing own{program, timeline};
  for (const Drawing& other : others) by_count[other.program.shape.micro_batches] = &other;
  by_count[program.shape.micro_batches] = &own;
  std::size_t actions_in_all = 0;
  for (const auto& [count, drawing] : by_count) {
    actions_in_all += drawing->program.size();
    plan::validate(drawing->program);
    plan::require_aligned(drawing->program, drawing->timeline);
    cost.require_fits(drawing->program.shape);
  }
  picture::require_drawable(actions_in_all);
  json lines = json::array(), names = json::array();
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank)
    lines.push_back(picture::rank_colour(rank, program.ranks.size()).hex());
  for (int op = 0; op < kOps; ++op) names.push_back(letters(static_cast<Op>(op)));
  json counts = json::array(), schedules = json::array(), arrows = json::array();
  json sums_of_all = json::array();
  for (const auto& [count, drawing] : by_count) {
    counts.push_back(count);
    schedules.push_back(actions(drawing->program, drawing->timeline));
    arrows.push_back(skips(drawing->program, drawing->timeline));
    sums_of_all.push_back(
        sums(drawing->program, cost, drawing->timeline.ticks_per_unit / cost.ticks_per_unit));
  }
  const json data = {{"ticks", timeline.ticks_per_unit},
                     {"slices", program.shape.slices},
                     {"replicas", program.shape.replicas()},
                     {"latency", cost.latency},
                     {"longest", longest(timeline)},
                     {"inputShare", input_share(cost)},
                     {"atomic", cost.pair.any()},
                     {"letters", std::move(names)},
                     {"lines", std::move(lines)},
                     {"colours", colours(picture::most_chunks(program))},
                     {"memory", memory(cost, program.shape.forward_only)},
                     {"count", program.shape.micro_batches},
                     {"counts", std::move(counts)},
                     {"schedules", std::move(schedules)},
                     {"skips", std::move(arrows)},
                     {"sums", std::move(sums_of_all)}};
  const std::string name = picture::escaped(title.empty() ? "schedule" : title);
  // The data are numbers and fixed words, so no text of a user can end the script element.
  return picture::page_head(name, schedule_page_style()) + "<h1>" + name +
         "</h1>\n<script type=\"application/json\" id=\"data\">" + data.dump() + "</script>\n" +
         picture::text_of(schedule_page_body()) + "<script>\n" +
         picture::text_of(schedule_page_script()) + "</script></body></html>\n";
}

}  // namespace millrace
