// Prices an open graph: ticks and memory of its nodes, delays of its edges, and who uses what.
#include "plan/model/job.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "millrace/core/error.hpp"
#include "plan/model/memory.hpp"
#include "plan/model/validate.hpp"

namespace millrace::plan {

namespace {

/// The program, checked, its pairs decoupled.
Program orderable(Program program, const Cost& cost) {
  validate(program);
  cost.require_fits(program.shape);
  require(!cost.contention,
          "the search times orders without contention on links; search without it (unset "
          "Cost::contention) and simulate the result with it");
  for (auto& list : program.ranks)
    for (Action& action : list) {
      if (!is_compute(action.op) || action.op == Op::Recompute)
        throw InvalidArgument("the search takes F, B, I and W only; found the " + describe(action));
      action.with_next = false;
    }
  return program;
}

}  // namespace

Job::Job(Program program, const Cost& cost, Work* work)
    : work_counter_(work),
      program_(orderable(std::move(program), cost)),
      graph_(program_, ListOrder::Open) {
  price_nodes(cost);
  price_links(cost);
  invert();
  find_whole();
}

void Job::price_nodes(const Cost& cost) {
  const MemoryModel model(program_, cost);
  for (auto* by_node : {&ticks_, &memory_}) by_node->reserve(graph_.size());
  rank_.reserve(graph_.size());
  for (std::size_t r = 0; r < program_.ranks.size(); ++r) {
    spend(4 * program_.ranks[r].size());
    const double speed = cost.rank_speed.empty() ? 1 : cost.rank_speed[r];
    double work = 0;
    for (const Action& action : program_.ranks[r]) {
      const MemoryChange change = model.change(action);
      rank_.push_back(static_cast<std::uint32_t>(r));
      ticks_.push_back(cost.ticks(action) / speed);
      memory_.push_back(change.start + change.end);
      work += ticks_.back();
    }
    work_.push_back(work);
  }
}

void Job::price_links(const Cost& cost) {
  const int ranks = program_.shape.ranks;
  const auto message = [&](int from, int to) {
    const Rank source{from}, destination{to};
    return cost.transfer(source, destination, ranks) + cost.delay(source, destination, ranks);
  };
  if (cost.link_latency.empty() && cost.link_bytes_per_tick.empty()) {
    link_ = message(0, ranks - 1);
    return;
  }
  for (int from = 0; from < ranks; ++from)
    for (int to = 0; to < ranks; ++to) links_.push_back(message(from, to));
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
    for (const Node producer : producers(node))
      whole_ = whole_ && whole(delay(producer, rank(node)));
  whole_ = whole_ && std::ranges::all_of(ticks_, whole);
}

JobOrder Job::own_order() const {
  JobOrder order(size());
  std::iota(order.begin(), order.end(), Node{0});
  return order;
}

Program Job::program(const JobOrder& order) const {
  Program program;
  program.shape = program_.shape;
  program.name = program_.name;
  program.ranks.resize(program_.ranks.size());
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    program.ranks[r].reserve(program_.ranks[r].size());
    for (Node at = first(r); at < first(r + 1); ++at) program.ranks[r].push_back(action(order[at]));
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
