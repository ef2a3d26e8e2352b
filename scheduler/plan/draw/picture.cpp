// Boxes, labels and arrows; see picture.hpp.
#include "plan/draw/picture.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <tuple>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/stage_graph.hpp"
#include "plan/model/validate.hpp"
#include "plan/text/number_text.hpp"

namespace millrace::picture {

namespace {

int mixed(int from, int to, double share) {
  return static_cast<int>(std::lround(from + (to - from) * share));
}

Colour mixed(Colour from, Colour to, double share) {
  return {mixed(from.red, to.red, share),
          mixed(from.green, to.green, share),
          mixed(from.blue, to.blue, share)};
}

}  // namespace

std::string Colour::hex() const {
  std::string text = "#";
  for (const int part : {red, green, blue}) {
    const auto value = static_cast<unsigned>(part);
    text += "0123456789abcdef"[value >> 4U];
    text += "0123456789abcdef"[value & 15U];
  }
  return text;
}

bool Colour::light() const {
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140;
}

Colour Colour::lightened(double share) const {
  return mixed(*this, {255, 255, 255}, share);
}

Colour colour_of(Op op) {
  switch (op) {
    case Op::Forward:
      return {54, 99, 187};
    case Op::Backward:
      return {30, 141, 98};
    case Op::BackwardInput:
      return {34, 158, 176};
    case Op::BackwardWeight:
      return {229, 152, 37};
    case Op::Recompute:
      return {138, 106, 188};
    case Op::SendForward:
    case Op::RecvForward:
    case Op::SendBackward:
    case Op::RecvBackward:
      return {176, 176, 176};
    case Op::ReduceGrad:
      return {196, 78, 82};
    case Op::OptimizerStep:
      return {90, 90, 90};
  }
  return {};
}

Colour shade(Op op, int chunk, int chunks) {
  constexpr double lightest = 0.62;
  if (chunks <= 1) return colour_of(op);
  return colour_of(op).lightened(lightest * chunk / (chunks - 1));
}

Colour rank_colour(std::size_t rank, std::size_t ranks) {
  constexpr std::array<Colour, 4> ramp = {
      Colour{84, 48, 140}, {40, 110, 170}, {50, 165, 105}, {225, 130, 30}};
  if (ranks <= 1) return ramp[0];
  const double at = static_cast<double>(rank) / static_cast<double>(ranks - 1) * 3;
  const auto index = std::min(static_cast<std::size_t>(at), std::size_t{2});
  return mixed(ramp[index], ramp[index + 1], at - static_cast<double>(index));
}

namespace {

constexpr std::size_t kMostActions = 400'000;

// chunk_of[replica][stage]: index among the stages of the same rank.
std::vector<std::vector<int>> chunk_numbers(const Shape& shape, int& most) {
  std::vector<int> held(static_cast<std::size_t>(shape.ranks));
  std::vector<std::vector<int>> chunk_of;
  for (int replica = 0; replica < shape.replicas(); ++replica) {
    chunk_of.emplace_back();
    for (int stage = 0; stage < shape.stages(); ++stage) {
      const Rank rank = shape.rank(Replica{replica}, Stage{stage});
      chunk_of.back().push_back(held[rank.index()]++);
    }
  }
  most = held.empty() ? 0 : *std::max_element(held.begin(), held.end());
  return chunk_of;
}

void mark_pair(std::vector<Box>& list, const std::vector<Action>& actions) {
  if (list.size() < 2) return;
  Box& first = list[list.size() - 2];
  Box& second = list.back();
  if (!actions[first.position].with_next || first.position + 1 != second.position) return;
  if (second.time.start >= first.time.end) return;
  first.upper = true;
  second.lower = true;
}

}  // namespace

void require_drawable(std::size_t actions) {
  require(actions <= kMostActions,
          "the schedule has " + std::to_string(actions) + " actions; a picture shows at most " +
              std::to_string(kMostActions) + " (fewer micro-batches, or the trace)");
}

std::vector<std::vector<Box>> boxes(const Program& program, const Timeline& timeline) {
  plan::validate(program);
  plan::require_aligned(program, timeline);
  int most = 0;
  const auto chunk_of = chunk_numbers(program.shape, most);
  std::vector<std::vector<Box>> all(program.ranks.size());
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    const auto& actions = program.ranks[rank];
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const Interval time = timeline.ranks[rank][i];
      if (is_receive(actions[i].op) || is_send(actions[i].op) || time.end <= time.start) continue;
      Box box;
      box.action = &actions[i];
      box.position = i;
      box.time = time;
      box.chunk = chunk_of[actions[i].replica().index()][actions[i].stage.index()];
      all[rank].push_back(box);
      mark_pair(all[rank], actions);
    }
  }
  return all;
}

std::vector<SkipArrow> skip_arrows(const Program& program, const Timeline& timeline) {
  const StageGraph graph(program.shape);
  if (graph.is_chain()) return {};
  std::map<std::tuple<Stage, MicroBatch, Slice>, Place> forwards;
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank)
    for (std::size_t i = 0; i < program.ranks[rank].size(); ++i)
      if (const Action& action = program.ranks[rank][i]; action.op == Op::Forward)
        forwards[{action.stage, action.micro_batch, action.slice}] = {
            rank, i, timeline.ranks[rank][i]};
  std::vector<SkipArrow> arrows;
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank)
    for (std::size_t i = 0; i < program.ranks[rank].size(); ++i) {
      const Action& action = program.ranks[rank][i];
      if (action.op != Op::Forward) continue;
      graph.for_each_leaving(action.stage, [&](const StageLink& link) {
        const auto used = forwards.find({link.to, action.micro_batch, action.slice});
        if (link.leaving == 0 || used == forwards.end()) return;
        arrows.push_back({{rank, i, timeline.ranks[rank][i]}, used->second});
      });
    }
  return arrows;
}

int most_chunks(const Program& program) {
  int most = 0;
  (void)chunk_numbers(program.shape, most);
  return most;
}

Interval extent(const Timeline& timeline) {
  Interval all{std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};
  for (const auto& rank : timeline.ranks)
    for (const Interval& time : rank) {
      all.start = std::min(all.start, time.start);
      all.end = std::max(all.end, time.end);
    }
  if (all.end < all.start) return {0, 0};
  return all;
}

std::string unit_label(const Action& action, const Shape& shape) {
  if (!has_unit(action.op)) return "";
  std::string label = std::to_string(action.micro_batch.value);
  if (shape.slices > 1) label += "." + std::to_string(action.slice.value);
  return label;
}

std::string number(double value, int digits) {
  return plan::number_text(value, digits);
}

double nice_step(double extent, double most_steps) {
  const double raw = extent / most_steps;
  if (!(raw > 0)) return 1;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= raw * (1 - 1e-9)) return factor * power;
  return 10 * power;
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char byte : text) {
    if (byte == '<')
      result += "&lt;";
    else if (byte == '>')
      result += "&gt;";
    else if (byte == '&')
      result += "&amp;";
    else if (byte == '"')
      result += "&quot;";
    else
      result += byte;
  }
  return result;
}

}  // namespace millrace::picture
