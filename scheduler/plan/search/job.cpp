// Flattens a program: numbers the actions, looks up their costs, connects what depends on what.
#include "plan/search/job.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/dependencies.hpp"
#include "plan/model/validate.hpp"

namespace millrace::plan {

namespace {

/// Node by product, stage and unit. A micro-batch belongs to one replica, so that is no key.
class Places {
 public:
  explicit Places(const Shape& shape)
      : micro_batches_(static_cast<std::size_t>(shape.micro_batches)),
        slices_(static_cast<std::size_t>(shape.slices)),
        size_(static_cast<std::size_t>(shape.forwards())),
        nodes_(3 * size_, kNoJobNode) {}

  JobNode& at(Product what, std::size_t stage, const Action& unit, std::size_t slice) {
    const std::size_t index = (stage * micro_batches_ + unit.micro_batch.index()) * slices_ + slice;
    return nodes_[static_cast<std::size_t>(what) * size_ + index];
  }

 private:
  std::size_t micro_batches_, slices_, size_;
  std::vector<JobNode> nodes_;
};

double per_slice(const std::vector<double>& values, const Action& action, int slices) {
  return values.empty() ? 0 : values[action.stage.index()] / slices;
}

double memory_change(const Action& action, const Cost& cost) {
  const double input = per_slice(cost.memory_input, action, cost.slices);
  const double weight = per_slice(cost.memory_weight, action, cost.slices);
  switch (action.op) {
    case Op::Forward:
      return per_slice(cost.memory_forward, action, cost.slices);
    case Op::BackwardInput:
      return input;
    case Op::BackwardWeight:
      return weight;
    case Op::Backward:
      return input + weight;
    default:
      return 0;
  }
}

double message_ticks(const Cost& cost, Rank source, Rank destination, int ranks) {
  return cost.transfer(source, destination, ranks) + cost.delay(source, destination, ranks);
}

}  // namespace

Job::Job(const Program& program, const Cost& cost, Work* work)
    : work_counter_(work), shape_(program.shape), name_(program.name) {
  validate(program);
  cost.require_fits(program.shape);
  require(!cost.contention,
          "the search times orders without contention on links; search without it (unset "
          "Cost::contention) and simulate the result with it");
  number(program, cost);
  connect(cost);
  invert();
  const auto whole = [](double ticks) { return ticks == std::floor(ticks); };
  whole_ =
      std::ranges::all_of(ticks_, whole) && std::ranges::all_of(producers_, whole, &JobEdge::delay);
}

void Job::number(const Program& program, const Cost& cost) {
  actions_.reserve(program.size());
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    spend(2 * program.ranks[r].size());
    first_.push_back(static_cast<JobNode>(actions_.size()));
    const double speed = cost.rank_speed.empty() ? 1 : cost.rank_speed[r];
    double work = 0;
    for (Action action : program.ranks[r]) {
      require(is_compute(action.op) && action.op != Op::Recompute,
              "the search takes F, B, I and W only; found the " + describe(action));
      action.with_next = false;
      actions_.push_back(action);
      rank_.push_back(static_cast<std::uint32_t>(r));
      ticks_.push_back(cost.ticks(action) / speed);
      memory_.push_back(memory_change(action, cost));
      work += ticks_.back();
    }
    work_.push_back(work);
  }
  first_.push_back(static_cast<JobNode>(actions_.size()));
}

void Job::connect(const Cost& cost) {
  Places places(shape_);
  for (JobNode node = 0; node < actions_.size(); ++node) {
    const Action& action = actions_[node];
    JobNode& place =
        places.at(product(action.op), action.stage.index(), action, action.slice.index());
    require(place == kNoJobNode, "the program has the " + describe(action) + " twice");
    place = node;
  }
  const auto add = [&](JobNode consumer, JobNode producer) {
    if (producer == kNoJobNode) return;
    const Rank from{static_cast<std::int32_t>(rank_[producer])};
    const Rank to{static_cast<std::int32_t>(rank_[consumer])};
    producers_.push_back({producer, from == to ? 0 : message_ticks(cost, from, to, shape_.ranks)});
  };
  const StageGraph graph(shape_);
  const Pipeline pipeline{graph, shape_.slices};
  for (JobNode node = 0; node < actions_.size(); ++node) {
    producer_start_.push_back(static_cast<std::uint32_t>(producers_.size()));
    spend(2);
    const Action& action = actions_[node];
    for_each_need(pipeline, action, [&](const Need& need) {
      if (need.product < Product::Recompute)
        add(node, places.at(need.product, need.stage.index(), action, need.slice.index()));
    });
  }
  producer_start_.push_back(static_cast<std::uint32_t>(producers_.size()));
}

void Job::invert() {
  consumer_start_.assign(actions_.size() + 1, 0);
  for (const JobEdge& edge : producers_) ++consumer_start_[edge.node + 1];
  for (std::size_t i = 0; i < actions_.size(); ++i) consumer_start_[i + 1] += consumer_start_[i];
  consumers_.resize(producers_.size());
  std::vector<std::uint32_t> next(consumer_start_.begin(), consumer_start_.end() - 1);
  spend(actions_.size());
  for (JobNode node = 0; node < actions_.size(); ++node)
    for (const JobEdge& edge : producers(node)) consumers_[next[edge.node]++] = {node, edge.delay};
}

JobOrder Job::own_order() const {
  JobOrder order(actions_.size());
  for (JobNode node = 0; node < order.size(); ++node) order[node] = node;
  return order;
}

Program Job::program(const JobOrder& order) const {
  Program program;
  program.shape = shape_;
  program.name = name_;
  program.ranks.resize(static_cast<std::size_t>(shape_.ranks));
  for (std::size_t r = 0; r < program.ranks.size(); ++r)
    for (JobNode at = first_[r]; at < first_[r + 1]; ++at)
      program.ranks[r].push_back(actions_[order[at]]);
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
