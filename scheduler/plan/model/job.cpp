// Prices an open graph: ticks and memory of its nodes, delays of its edges, and who uses what.
#include "plan/model/job.hpp"

#include <cmath>
#include <numeric>
#include <utility>

#include "millrace/core/error.hpp"
#include "plan/model/memory.hpp"
#include "plan/model/reductions.hpp"
#include "plan/model/stage_sums.hpp"
#include "plan/model/validate.hpp"

namespace millrace::plan {

namespace {

bool is_of_same_unit(const Action& one, const Action& other) {
  return one.stage == other.stage && one.micro_batch == other.micro_batch &&
         one.slice == other.slice && one.replica_number == other.replica_number;
}

Action recompute_of(Action action) {
  action.op = Op::Recompute;
  return action;
}

/// Takes the recomputes out of the program. By action that is left: whether it had one; nothing
/// where there was none.
std::vector<bool> taken_recomputes(Program& program) {
  std::vector<bool> had;
  bool any = false;
  for (auto& list : program.ranks) {
    std::vector<Action> left;
    left.reserve(list.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      const bool again = list[i].op == Op::Recompute;
      if (again && (i + 1 == list.size() || !gives_input_gradient(list[i + 1].op) ||
                    !is_of_same_unit(list[i], list[i + 1])))
        throw InvalidArgument("the search takes a recompute right before its backward; found the " +
                              describe(list[i]) + " before something else");
      any = any || again;
      if (again) ++i;
      left.push_back(list[i]);
      had.push_back(again);
    }
    list = std::move(left);
  }
  return any ? had : std::vector<bool>();
}

/// By node: whether it leads a pair that runs as one, in a program without recomputes; nothing
/// where no pair can.
std::vector<bool> leaders(const Program& program, const PairTimes& pairs) {
  std::vector<bool> leads;
  if (!pairs.any()) return leads;
  for (const auto& list : program.ranks)
    for (std::size_t i = 0; i < list.size(); ++i) leads.push_back(pairs.at(list, i) >= 0);
  return leads;
}

/// The program, checked, its pairs decoupled.
Program orderable(Program program, const Cost& cost) {
  validate(program);
  cost.require_fits(program.shape);
  require(!cost.contention,
          "the search times orders without contention on links; search without it (unset "
          "Cost::contention) and simulate the result with it");
  require(!cost.shares_cores(program.shape.ranks),
          "the search times orders with a processor per rank; search without Cost::cores and "
          "simulate the result with it");
  require(!cost.tree_of_sums || cost.gradient_bytes.empty(),
          "the search orders passes without a tree of sums, whose memory depends on the order; "
          "search without Cost::tree_of_sums and simulate the result with it");
  for (auto& list : program.ranks)
    for (Action& action : list) {
      if (!is_compute(action.op))
        throw InvalidArgument("the search takes F, B, I and W only; found the " + describe(action));
      action.with_next = false;
    }
  return program;
}

}  // namespace

Job::Job(Program program, const Cost& cost, Work* work)
    : work_counter_(work),
      recomputes_(taken_recomputes(program)),
      pairs_(cost.pair),
      speed_(cost.rank_speed),
      leads_(leaders(program, cost.pair)),
      program_(orderable(std::move(program), cost)),
      graph_(program_, ListOrder::Open),
      passes_(cost.passes) {
  place_nodes();
  price_nodes(cost);
  price_links(cost);
  if (cost.adds_gradients(program_.shape)) price_sums(cost);
  invert();
  find_whole();
}

void Job::place_nodes() {
  rank_.reserve(graph_.size());
  for (std::size_t r = 0; r < program_.ranks.size(); ++r)
    rank_.insert(rank_.end(), program_.ranks[r].size(), static_cast<std::uint32_t>(r));
}

void Job::price_nodes(const Cost& cost) {
  const Program whole = has_recompute() ? program(own_order()) : Program();
  const MemoryModel model(has_recompute() ? whole : program_, cost);
  for (auto* by_node : {&ticks_, &memory_, &room_}) by_node->resize(graph_.size());
  if (has_pairs()) inside_.resize(graph_.size());
  if (has_recompute()) lead_.resize(graph_.size());
  work_.resize(program_.ranks.size());
  for (Node node = 0; node < size(); ++node) {
    const std::size_t r = rank(node);
    if (node == first(r)) spend(4 * program_.ranks[r].size());
    const double speed = cost.rank_speed.empty() ? 1 : cost.rank_speed[r];
    const MemoryChange change = model.change(action(node));
    ticks_[node] = cost.ticks(action(node)) / speed;
    double before = change.start, passing = std::max(0.0, change.transient);
    if (recomputes(node)) {
      const Action again = recompute_of(action(node));
      lead_[node] = cost.ticks(again) / speed;
      ticks_[node] += lead_[node];
      const MemoryChange brought = model.change(again);
      before += brought.start;
      passing = std::max(passing, brought.transient);
    }
    memory_[node] = before + change.end;
    const double inside = before + passing;
    if (has_pairs()) inside_[node] = inside;
    room_[node] = std::max(inside, memory_[node]);
    work_[r] += ticks_[node];
  }
}

void Job::price_like(const Job& other, Node node) {
  if (!has_recompute()) {
    recomputes_.resize(size());
    lead_.resize(size());
  }
  work_[rank(node)] += other.ticks_[node] - ticks_[node];
  recomputes_[node] = other.recomputes(node);
  lead_[node] = other.lead_.empty() ? 0 : other.lead_[node];
  ticks_[node] = other.ticks_[node];
  memory_[node] = other.memory_[node];
  room_[node] = other.room_[node];
  whole_ = whole_ && other.whole_;
  if (unit_run_) unit_run_->price_like(*other.unit_run_, node);
}

void Job::price_links(const Cost& cost) {
  if (!cost.boundary_bytes.empty()) sized_ = std::make_unique<Cost>(cost);
  const int ranks = program_.shape.ranks;
  const auto message = [&](int from, int to) {
    const Rank source{from}, destination{to};
    return cost.transfer(source, destination, ranks) + cost.delay(source, destination, ranks);
  };
  if (!sized_ && cost.link_latency.empty() && cost.link_bytes_per_tick.empty()) {
    link_ = message(0, ranks - 1);
    return;
  }
  for (int from = 0; from < ranks; ++from)
    for (int to = 0; to < ranks; ++to) links_.push_back(message(from, to));
}

double Job::sized_message(Node producer, Node node) const {
  const Rank from{static_cast<std::int32_t>(rank_[producer])};
  const Rank to{static_cast<std::int32_t>(rank_[node])};
  const Stage feeding = std::min(action(producer).stage, action(node).stage);
  return sized_->transfer(from, to, ranks(), feeding) + sized_->delay(from, to, ranks());
}

void Job::price_sums(const Cost& cost) {
  const Shape& shape = program_.shape;
  for (int r = 0; r < shape.replicas(); ++r)
    for (int s = 0; s < shape.stages(); ++s) {
      const Rank rank = shape.rank(Replica{r}, Stage{s});
      copy_rank_.push_back(rank.index());
      sums_.push_back(
          {cost.sum_transfer(Stage{s}, rank, shape.ranks), cost.sum_delay(rank, shape.ranks)});
    }
  bool between_ranks = false;
  const auto groups = reduction_groups(shape, graph_.stage_graph());
  for (std::size_t stage = 0; stage < groups.size(); ++stage) {
    if (groups[stage].front().stage.index() != stage) continue;
    Meeting& meeting = meetings_.emplace_back();
    for (const Copy& from : groups[stage]) {
      meeting.copies.push_back(copy(from.replica, from.stage));
      for (const Copy& to : groups[stage]) {
        const double way = way_of_sum(shape, cost, from, shape.rank(to.replica, to.stage)).way();
        meeting.ways.push_back(way);
        between_ranks |= shape.rank(from.replica, from.stage) != shape.rank(to.replica, to.stage);
      }
    }
  }
  if (between_ranks)
    unit_run_ = std::make_unique<Job>(program(own_order()), Cost::unit(shape), work_counter_);
}

void Job::invert() {
  consumer_start_.assign(size() + 1, 0);
  for (Node node = 0; node < size(); ++node)
    for (const Node producer : producers(node)) ++consumer_start_[producer + 1];
  std::partial_sum(consumer_start_.begin(), consumer_start_.end(), consumer_start_.begin());
  consumers_.resize(consumer_start_.back());
  std::vector<std::uint32_t> next(consumer_start_.begin(), consumer_start_.end() - 1);
  spend(size());
  for (Node node = 0; node < size(); ++node)
    for (const Node producer : producers(node)) consumers_[next[producer]++] = node;
}

void Job::find_whole() {
  const auto whole = [](double ticks) { return ticks == std::floor(ticks); };
  for (Node node = 0; node < size(); ++node)
    for (const Node producer : producers(node)) whole_ = whole_ && whole(delay(producer, node));
  whole_ = whole_ && std::ranges::all_of(ticks_, whole) && std::ranges::all_of(pairs_.ticks, whole);
  for (const double speed : speed_)
    for (const double ticks : pairs_.ticks) whole_ = whole_ && (ticks < 0 || whole(ticks / speed));
  for (const Sum& sum : sums_) whole_ = whole_ && whole(sum.transfer) && whole(sum.delay);
  for (const Meeting& meeting : meetings_)
    whole_ = whole_ && std::ranges::all_of(meeting.ways, whole);
}

double Job::peak(const JobOrder& order, std::size_t rank) const {
  double memory = 0, peak = 0;
  for (std::size_t at = first(rank); at < first(rank + 1); ++at) {
    peak = std::max(peak, memory + room(order[at]));
    memory += this->memory(order[at]);
  }
  return peak;
}

JobOrder Job::own_order() const {
  JobOrder order(size());
  std::iota(order.begin(), order.end(), Node{0});
  return order;
}

Program Job::program(const JobOrder& order, const std::vector<bool>& leads) const {
  Program program;
  program.shape = program_.shape;
  program.name = program_.name;
  program.ranks.resize(program_.ranks.size());
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    program.ranks[r].reserve(program_.ranks[r].size());
    for (Node at = first(r); at < first(r + 1); ++at) {
      if (recomputes(order[at])) program.ranks[r].push_back(recompute_of(action(order[at])));
      program.ranks[r].push_back(action(order[at]));
      program.ranks[r].back().with_next = !leads.empty() && leads[order[at]];
    }
  }
  return program;
}

Program everything(const Shape& shape, bool fused) {
  Program program;
  program.shape = shape;
  program.ranks.resize(static_cast<std::size_t>(shape.ranks));
  const auto each = [&](Op op) {
    for (int s = 0; s < shape.stages(); ++s)
      for (int unit = 0; unit < shape.micro_batches * shape.slices; ++unit) {
        const int stage = op == Op::Forward ? s : shape.stages() - 1 - s;
        const MicroBatch micro_batch{unit / shape.slices};
        const Replica replica = shape.replica(micro_batch);
        program.ranks[shape.rank(replica, Stage{stage}).index()].push_back(
            {.op = op,
             .replica_number = static_cast<std::uint8_t>(replica.value),
             .stage = Stage{stage},
             .micro_batch = micro_batch,
             .slice = Slice{unit % shape.slices}});
      }
  };
  each(Op::Forward);
  if (fused) each(Op::Backward);
  if (!fused) each(Op::BackwardInput);
  if (!fused) each(Op::BackwardWeight);
  return program;
}

}  // namespace millrace::plan
