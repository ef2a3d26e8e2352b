// Edges are sorted and checked once; links are runs of edges between the same two stages.
#include "millrace/scheduler/plan/stage_graph.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <tuple>

#include "millrace/core/error.hpp"

namespace millrace {

namespace {

std::string name_of(const StageEdge& edge) {
  return "the edge from output " + std::to_string(edge.output) + " of stage " +
         std::to_string(edge.from.value) + " to input " + std::to_string(edge.input) +
         " of stage " + std::to_string(edge.to.value);
}

constexpr int kMostOutputs = 65535;

void check(const StageEdge& edge, int stages) {
  for (const Stage stage : {edge.from, edge.to})
    require(stage.value >= 0 && stage.value < stages, [&] {
      return name_of(edge) + " names a stage outside 0 to " + std::to_string(stages - 1);
    });
  require(edge.from < edge.to, [&] {
    return name_of(edge) + " does not lead to a later stage; edges run forwards, so that no cycle" +
           " is possible";
  });
  require(edge.output >= 0 && edge.input >= 0,
          [&] { return name_of(edge) + " has a negative index; both count from 0"; });
  require(edge.output <= kMostOutputs, [&] {
    return name_of(edge) + " names an output above " + std::to_string(kMostOutputs) +
           ", the most that a stage may have";
  });
}

/// Inputs have one producer each and no gap; every stage but the sinks gives, every stage but the
/// first takes.
void check_ends(std::vector<StageEdge> edges, int stages, const std::vector<Stage>& sinks) {
  std::sort(edges.begin(), edges.end(), [](const StageEdge& a, const StageEdge& b) {
    return std::tie(a.to, a.input, a.from) < std::tie(b.to, b.input, b.from);
  });
  std::vector<int> inputs(static_cast<std::size_t>(stages), 0);
  std::vector<bool> gives(static_cast<std::size_t>(stages), false);
  for (const StageEdge& edge : edges) {
    int& known = inputs[edge.to.index()];
    require(edge.input >= known, [&] {
      return "input " + std::to_string(edge.input) + " of stage " + std::to_string(edge.to.value) +
             " has two producers; it takes one";
    });
    require(edge.input == known, [&] {
      return "input " + std::to_string(known) + " of stage " + std::to_string(edge.to.value) +
             " has no producer, but a later one has; inputs count from 0 without a gap";
    });
    ++known;
    gives[edge.from.index()] = true;
  }
  for (int stage = 0; stage < stages; ++stage) {
    require(stage == 0 || inputs[static_cast<std::size_t>(stage)] > 0, [&] {
      return "stage " + std::to_string(stage) + " has no input: no edge leads to it";
    });
    const bool is_sink =
        stage + 1 == stages || std::ranges::find(sinks, Stage{stage}) != sinks.end();
    require(is_sink || gives[static_cast<std::size_t>(stage)], [&] {
      return "stage " + std::to_string(stage) + " has no consumer and is not a sink";
    });
    require(!is_sink || !gives[static_cast<std::size_t>(stage)], [&] {
      return "stage " + std::to_string(stage) + " is a sink, so no edge may leave it";
    });
  }
}

void check_sinks(const std::vector<Stage>& sinks, int stages, bool chain) {
  if (sinks.empty()) return;
  require(std::ranges::adjacent_find(sinks, std::greater_equal<>()) == sinks.end() &&
              sinks.front().value >= 0,
          "sinks are numbers of stages that ascend from 0");
  require(sinks.back().value == stages - 1, [&] {
    return "the last sink is stage " + std::to_string(sinks.back().value) +
           "; it must be the last stage, " + std::to_string(stages - 1);
  });
  require(!chain || sinks.size() == 1, [&] {
    return "stage " + std::to_string(sinks.front().value) +
           " is a sink, but in a chain the next stage takes what it gives; name the edges";
  });
}

std::string name_of(const StageWeight& weight) {
  return "weight '" + weight.name + "' of stage " + std::to_string(weight.stage.value);
}

void check(const StageTie& tie, int stages, std::set<std::string>& known) {
  require(tie.weights.size() >= 2, [&] {
    return "a tie has at least 2 weights, got " + std::to_string(tie.weights.size());
  });
  Stage before{0};
  for (const StageWeight& weight : tie.weights) {
    require(weight.stage.value >= 0 && weight.stage.value < stages, [&] {
      return "tied " + name_of(weight) + " names a stage outside 0 to " +
             std::to_string(stages - 1);
    });
    require(!weight.name.empty(), [&] {
      return "a tied weight of stage " + std::to_string(weight.stage.value) + " has no name";
    });
    require(known.insert(weight.name).second,
            [&] { return "weight '" + weight.name + "' is tied twice"; });
    require(before <= weight.stage, [&] {
      return "tied " + name_of(weight) + " stands behind one of stage " +
             std::to_string(before.value) + "; they are named in the order of the layers";
    });
    before = weight.stage;
  }
}

bool same_link(const StageEdge& a, const StageEdge& b) {
  return a.from == b.from && a.to == b.to;
}

std::uint8_t number(std::size_t rank, Stage stage, const char* side) {
  require(rank <= std::numeric_limits<std::uint8_t>::max(), [&] {
    return "stage " + std::to_string(stage.value) + " has more than 255 links that " + side + " it";
  });
  return static_cast<std::uint8_t>(rank);
}

}  // namespace

StageGraph::StageGraph(const Shape& shape)
    : stages_(shape.stages()), chain_(shape.edges.empty()), ties_(shape.ties), sinks_(shape.sinks) {
  check_sinks(sinks_, stages_, chain_);
  std::set<std::string> tied;
  for (const StageTie& tie : ties_) check(tie, stages_, tied);
  if (!chain_) make_links(shape);
}

std::optional<std::size_t> StageGraph::sink(Stage stage) const {
  if (sinks_.empty())
    return stage.value + 1 == stages_ ? std::optional<std::size_t>(0) : std::nullopt;
  const auto found = std::ranges::find(sinks_, stage);
  if (found == sinks_.end()) return std::nullopt;
  return static_cast<std::size_t>(found - sinks_.begin());
}

bool StageGraph::is_tied(Stage stage) const {
  for (const StageTie& tie : ties_)
    for (const StageWeight& weight : tie.weights)
      if (weight.stage == stage) return true;
  return false;
}

std::vector<std::vector<Stage>> StageGraph::reduced_together() const {
  std::vector<std::size_t> lowest(static_cast<std::size_t>(stages_));
  std::iota(lowest.begin(), lowest.end(), std::size_t{0});
  for (const StageTie& tie : ties_)
    for (const StageWeight& weight : tie.weights) {
      const std::size_t from = lowest[weight.stage.index()];
      const std::size_t to = lowest[tie.weights.front().stage.index()];
      for (std::size_t& other : lowest)
        if (other == from || other == to) other = std::min(from, to);
    }
  std::vector<std::vector<Stage>> members(lowest.size());
  for (std::size_t stage = 0; stage < lowest.size(); ++stage)
    members[lowest[stage]].emplace_back(static_cast<std::int32_t>(stage));
  std::vector<std::vector<Stage>> together;
  together.reserve(lowest.size());
  for (const std::size_t group : lowest) together.push_back(members[group]);
  return together;
}

void StageGraph::make_links(const Shape& shape) {
  for (const StageEdge& edge : shape.edges) check(edge, stages_);
  check_ends(shape.edges, stages_, sinks_);
  edges_ = shape.edges;
  std::sort(edges_.begin(), edges_.end(), [](const StageEdge& a, const StageEdge& b) {
    return std::tie(a.from, a.to, a.input) < std::tie(b.from, b.to, b.input);
  });
  for (std::size_t i = 0; i < edges_.size(); ++i) {
    if (i > 0 && same_link(edges_[i], edges_[i - 1])) continue;
    links_.push_back(
        {edges_[i].from, edges_[i].to, 0, 0, static_cast<std::uint32_t>(links_.size())});
    edge_of_.push_back(i);
  }
  edge_of_.push_back(edges_.size());
  number_links();
}

/// Number 0 belongs to the neighbour stage on either side, whether there is a link to it or not.
void StageGraph::number_links() {
  const auto count = static_cast<std::size_t>(stages_);
  std::vector<std::size_t> leaving(count, 1), entering(count, 1);
  first_.assign(count + 1, 0);
  first_entering_.assign(count + 1, 0);
  for (StageLink& link : links_) {
    ++first_[link.from.index() + 1];
    ++first_entering_[link.to.index() + 1];
    if (link.to.value == link.from.value + 1) continue;
    link.leaving = number(leaving[link.from.index()]++, link.from, "leave");
    link.entering = number(entering[link.to.index()]++, link.to, "enter");
  }
  for (std::size_t stage = 0; stage < count; ++stage) {
    first_[stage + 1] += first_[stage];
    first_entering_[stage + 1] += first_entering_[stage];
  }
  entering_.resize(links_.size());
  for (std::size_t i = 0; i < entering_.size(); ++i) entering_[i] = i;
  std::stable_sort(entering_.begin(), entering_.end(), [&](std::size_t a, std::size_t b) {
    return links_[a].to < links_[b].to;
  });
}

std::optional<StageLink> StageGraph::numbered_link(const Action& action) const {
  std::optional<StageLink> found;
  if (acts_for_leaving(action.op))
    for_each_leaving(action.stage, [&](const StageLink& link) {
      if (link.leaving == action.edge) found = link;
    });
  else
    for_each_entering(action.stage, [&](const StageLink& link) {
      if (link.entering == action.edge) found = link;
    });
  return found;
}

std::span<const StageEdge> StageGraph::edges(const StageLink& link) const {
  if (is_chain()) return {};
  return std::span(edges_).subspan(edge_of_[link.index],
                                   edge_of_[link.index + 1] - edge_of_[link.index]);
}

Action send_of(const Action& producer, const StageLink& link) {
  const bool forward = producer.op == Op::Forward;
  Action action = producer;
  action.with_next = false;
  action.op = forward ? Op::SendForward : Op::SendBackward;
  action.edge = forward ? link.leaving : link.entering;
  return action;
}

Action receive_of(const Action& producer, const StageLink& link) {
  const bool forward = producer.op == Op::Forward;
  Action action = producer;
  action.with_next = false;
  action.op = forward ? Op::RecvForward : Op::RecvBackward;
  action.stage = forward ? link.to : link.from;
  action.edge = forward ? link.entering : link.leaving;
  return action;
}

Message message_of(const Shape& shape,
                   const StageGraph& graph,
                   const Action& action,
                   std::uint64_t step) {
  require(is_send(action.op) || is_receive(action.op),
          [&] { return describe(action) + " is not a message; a send or receive is"; });
  const auto link = graph.link(action);
  require(link.has_value(), [&] {
    return to_string(action) + " has no partner: no such link leaves or enters its stage";
  });
  const bool forward = action.op == Op::SendForward || action.op == Op::RecvForward;
  const Stage to = forward ? link->to : link->from;
  return {.source = shape.rank(action.replica(), forward ? link->from : link->to),
          .destination = shape.rank(action.replica(), to),
          .direction = forward ? Direction::Forward : Direction::Backward,
          .step = step,
          .replica = action.replica(),
          .stage = to,
          .edge = forward ? link->entering : link->leaving,
          .unit = action.unit()};
}

Message message_of(const Shape& shape, const Action& action, std::uint64_t step) {
  return message_of(shape, StageGraph(shape), action, step);
}

}  // namespace millrace
