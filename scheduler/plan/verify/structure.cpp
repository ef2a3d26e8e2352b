// One pass over the lists fills the lookup and counts; what is missing is only searched for when
// the counts do not add up.
#include "plan/verify/structure.hpp"

#include <limits>
#include <string>

#include "millrace/core/error.hpp"
#include "plan/model/reductions.hpp"
#include "plan/model/validate.hpp"

namespace millrace::plan {

namespace {

std::string range(int count) {
  return count == 1 ? "0" : "0 to " + std::to_string(count - 1);
}

/// A shape whose tables would dwarf the program gets none: it is incomplete anyhow.
std::int64_t most_units(const Program& program) {
  return 4 * static_cast<std::int64_t>(program.size()) + 4096;
}

std::string owed(const Shape& shape) {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  return owes_at_most(shape, most) ? std::to_string(shape.forwards()) : "more than 2^63";
}

/// Why a message that belongs to no link has no partner.
std::string no_partner(const Action& action) {
  if (action.edge == 0) return " has no partner: the pipeline ends at its stage";
  return " has no partner: its stage has no link of number " + std::to_string(action.edge);
}

/// Whether two passes of one micro-batch do not depend on each other: both are forward, or both
/// backward, and one is further in the model, the other in the sequence.
bool independent_slices(const Action& one, const Action& two) {
  const bool same_way = (one.op == Op::Forward) == (two.op == Op::Forward);
  return same_way && one.stage != two.stage && one.slice != two.slice &&
         (one.stage < two.stage) == (two.slice < one.slice);
}

Shape lookup_shape(const Program& program) {
  Shape shape = program.shape;
  const bool sane =
      shape.micro_batches >= 0 && shape.slices >= 0 && owes_at_most(shape, most_units(program));
  if (!sane) shape.micro_batches = 0;
  return shape;
}

}  // namespace

Structure::Structure(const Program& program)
    : program_(program), graph_(program.shape.stages()), lookup_(lookup_shape(program), graph_) {}

std::vector<Violation> Structure::check() {
  if (!frame() || passes_fast_path()) return violations_;
  lists();
  if (outside_) return violations_;
  completeness();
  reductions();
  steps();
  if (messages_) messages();
  return violations_;
}

void Structure::report(Rule rule, Rank rank, std::size_t position, std::string message) {
  violations_.push_back({rule, rank, position, std::move(message)});
}

Rank Structure::home(const Action& action) const {
  return program_.shape.rank(action.replica(), action.stage);
}

const Action& Structure::at(Rank rank, Node node) const {
  return program_.ranks[rank.index()][node - first_[rank.index()]];
}

/// The shape itself. Returns whether the lists can be looked at.
bool Structure::frame() {
  const Shape& shape = program_.shape;
  const auto refuse = [&](Rule rule, const std::string& message) {
    report(rule, Rank{0}, 0, message);
    return false;
  };
  if (program_.ranks.size() != static_cast<std::size_t>(shape.ranks))
    return refuse(Rule::Placement,
                  "the program has " + std::to_string(program_.ranks.size()) +
                      " lists; its shape has " + std::to_string(shape.ranks) + " ranks");
  for (int replica = 0; replica < shape.replicas(); ++replica)
    for (int stage = 0; stage < shape.stages(); ++stage)
      if (shape.rank(Replica{replica}, Stage{stage}).value >= shape.ranks)
        return refuse(Rule::Placement,
                      "stage " + std::to_string(stage) + " is placed on rank " +
                          std::to_string(shape.rank(Replica{replica}, Stage{stage}).value) +
                          "; the ranks are " + range(shape.ranks));
  if (shape.stages() < 1 || shape.micro_batches < 1 || shape.slices < 1)
    return refuse(Rule::Completeness,
                  "the shape has " + std::to_string(shape.stages()) + " stages, " +
                      std::to_string(shape.micro_batches) + " micro-batches and " +
                      std::to_string(shape.slices) + " slices; each is at least 1");
  if (!shape.replica_of.empty() &&
      shape.replica_of.size() != static_cast<std::size_t>(shape.micro_batches))
    return refuse(Rule::Completeness,
                  "replica_of names " + std::to_string(shape.replica_of.size()) +
                      " micro-batches; the shape has " + std::to_string(shape.micro_batches));
  for (const Replica replica : shape.replica_of)
    if (replica.value < 0 || replica.value >= shape.replicas())
      return refuse(Rule::Completeness,
                    "replica_of names replica " + std::to_string(replica.value) +
                        "; the replicas are " + range(shape.replicas()));
  try {
    graph_ = StageGraph(shape);
  } catch (const InvalidArgument& fault) {
    return refuse(Rule::Placement, fault.what());
  }
  if (!owes_at_most(shape, most_units(program_)))
    return refuse(Rule::Completeness,
                  "the shape owes " + owed(shape) + " forwards; the program has only " +
                      std::to_string(program_.size()) + " actions");
  return true;
}

void Structure::lists() {
  const Shape& shape = program_.shape;
  reduced_.resize(static_cast<std::size_t>(shape.stages()) *
                  static_cast<std::size_t>(shape.replicas()));
  steps_.resize(program_.ranks.size());
  first_.push_back(0);
  Node node = 0;
  for (std::size_t r = 0; r < program_.ranks.size(); ++r) {
    const Rank rank{static_cast<std::int32_t>(r)};
    const auto& list = program_.ranks[r];
    for (std::size_t i = 0; i < list.size(); ++i) {
      visit(rank, i, list[i], node++);
      if (list[i].with_next) pair(rank, i);
    }
    first_.push_back(node);
  }
}

void Structure::visit(Rank rank, std::size_t position, const Action& action, Node node) {
  if (!inside(rank, action)) {
    Rule rule = Rule::Placement;
    const std::string fault = outside(rank, action, rule);
    outside_ = true;
    return report(rule, rank, position, fault);
  }
  if (!has_unit(action.op)) return joint(rank, position, action);
  if (!is_compute(action.op) && !graph_.link(action))
    return report(Rule::Messages, rank, position, to_string(action) + no_partner(action));
  const Node first = lookup_.insert(action, node);
  if (first != node) return repeated(rank, position, action, first);
  forwards_ += action.op == Op::Forward ? 1 : 0;
  fused_ += action.op == Op::Backward ? 1 : 0;
  split_ += action.op == Op::BackwardInput || action.op == Op::BackwardWeight ? 1 : 0;
  messages_ = messages_ || !is_compute(action.op);
}

/// What puts an action outside the shape or on the wrong rank, or nothing.
std::string Structure::outside(Rank rank, const Action& action, Rule& rule) const {
  const Shape& shape = program_.shape;
  const auto name = [&] { return to_string(action); };
  if (static_cast<int>(action.op) >= kOps)
    return name() + " has op number " + std::to_string(static_cast<int>(action.op)) +
           "; the ops are " + range(kOps);
  if (action.op == Op::OptimizerStep) return {};
  if (action.stage.value < 0 || action.stage.value >= shape.stages())
    return name() + " names a stage outside " + range(shape.stages());
  if (action.replica_number >= shape.replicas())
    return name() + " names a replica outside " + range(shape.replicas());
  if (home(action) != rank)
    return name() + " is on rank " + std::to_string(rank.value) +
           "; the placement puts its stage on rank " + std::to_string(home(action).value);
  rule = Rule::Completeness;
  if (!has_unit(action.op))
    return action.unit() == Unit{} ? std::string() : name() + " belongs to no micro-batch";

  if (action.micro_batch.value < 0 || action.micro_batch.value >= shape.micro_batches)
    return name() + " names a micro-batch outside " + range(shape.micro_batches);
  if (action.slice.value < 0 || action.slice.value >= shape.slices)
    return name() + " names a slice outside " + range(shape.slices);
  if (action.replica() != shape.replica(action.micro_batch))
    return name() + " runs on replica " + std::to_string(action.replica_number) +
           "; its micro-batch belongs to replica " +
           std::to_string(shape.replica(action.micro_batch).value);
  const bool forward =
      action.op == Op::Forward || action.op == Op::SendForward || action.op == Op::RecvForward;
  if (shape.forward_only && !forward) return name() + " has no place in a forward-only schedule";
  return {};
}

void Structure::repeated(Rank rank, std::size_t position, const Action& action, Node first) {
  const std::size_t before = first - first_[rank.index()];
  const Action& other = program_.ranks[rank.index()][before];
  if (other.op != action.op)
    report(Rule::WeightAfterInput,
           rank,
           position,
           to_string(action) + " stands beside " + to_string(other) + " (position " +
               std::to_string(before) + "); a unit has B, or I and W");
  else
    report(is_compute(action.op) ? Rule::Completeness : Rule::Messages,
           rank,
           position,
           to_string(action) + " appears a second time (first at position " +
               std::to_string(before) + ")");
  violations_.back().others.push_back({rank, before});
}

void Structure::pair(Rank rank, std::size_t position) {
  const auto& list = program_.ranks[rank.index()];
  const Action& one = list[position];
  const auto fault = [&](const std::string& why) {
    report(Rule::Pairs, rank, position, to_string(one) + " leads a pair " + why);
  };
  if (position + 1 == list.size()) return fault("but is the last action of its rank");
  const Action& two = list[position + 1];
  const std::string with = "with " + to_string(two);
  if (two.with_next) return fault(with + ", which leads a pair itself");
  const auto is_pass = [](const Action& each) { return each.op <= Op::BackwardWeight; };
  if (!is_pass(one) || !is_pass(two)) return fault(with + "; a pair is two of F, B, I and W");
  if (one.micro_batch == two.micro_batch && !independent_slices(one, two))
    fault(with + " of the same micro-batch, which depends on it");
}

/// REDUCE_GRAD and STEP.
void Structure::joint(Rank rank, std::size_t position, const Action& action) {
  const bool step = action.op == Op::OptimizerStep;
  std::size_t& count =
      step ? steps_[rank.index()]
           : reduced_[action.replica().index() * static_cast<std::size_t>(program_.shape.stages()) +
                      action.stage.index()];
  if (++count > 1)
    report(Rule::Completeness, rank, position, to_string(action) + " appears a second time");
}

void Structure::report_missing(Rule rule, const Action& action) {
  const Rank rank = home(action);
  report(rule, rank, program_.ranks[rank.index()].size(), to_string(action) + " is missing");
}

void Structure::completeness() {
  const Shape& shape = program_.shape;
  const std::int64_t owed = shape.forwards();
  if (forwards_ == owed && split_ == 0 && fused_ == (shape.forward_only ? 0 : owed)) return;
  for (int stage = 0; stage < shape.stages(); ++stage)
    for (int micro_batch = 0; micro_batch < shape.micro_batches; ++micro_batch)
      for (int slice = 0; slice < shape.slices; ++slice)
        unit(Stage{stage}, MicroBatch{micro_batch}, Slice{slice});
}

void Structure::unit(Stage stage, MicroBatch micro_batch, Slice slice) {
  const Replica replica = program_.shape.replica(micro_batch);
  Action action{
      Op::Forward, false, static_cast<std::uint8_t>(replica.value), 0, stage, micro_batch, slice};
  const auto find = [&](Product product) {
    return lookup_.find(product, stage, micro_batch, slice);
  };
  if (find(Product::Forward) == kNoNode) report_missing(Rule::Completeness, action);
  if (program_.shape.forward_only) return;
  const Node gradient = find(Product::Gradient);
  const Node weight = find(Product::Weight);
  if (gradient != kNoNode) return weight_half(action, gradient, weight);
  action.op = weight == kNoNode ? Op::Backward : Op::BackwardInput;
  report_missing(Rule::Completeness, action);
}

/// W exactly where there is an I, and after it.
void Structure::weight_half(const Action& action, Node gradient, Node weight) {
  const Rank rank = home(action);
  const Action& made = at(rank, gradient);
  if (weight == kNoNode) {
    Action missing = action;
    missing.op = Op::BackwardWeight;
    if (made.op == Op::BackwardInput) report_missing(Rule::Completeness, missing);
    return;
  }
  const std::string name = to_string(at(rank, weight));
  const std::size_t position = weight - first_[rank.index()];
  if (made.op == Op::Backward)
    report(Rule::WeightAfterInput,
           rank,
           position,
           name + " stands beside " + to_string(made) + "; a unit has B, or I and W");
  else if (weight < gradient)
    report(Rule::WeightAfterInput, rank, position, name + " comes before its " + to_string(made));
}

/// Once any gradient is reduced, every copy of a replicated or tied stage owes a reduction; a
/// stage of one copy without ties may have one, the sum of one.
void Structure::reductions() {
  const auto stages = static_cast<std::size_t>(program_.shape.stages());
  bool any = false;
  for (const std::size_t count : reduced_) any = any || count > 0;
  if (!any) return;
  const auto groups = reduction_groups(program_.shape, graph_);
  for (std::size_t copy = 0; copy < reduced_.size(); ++copy) {
    if (reduced_[copy] > 0 || !owes_reduction(groups[copy % stages], graph_)) continue;
    const auto replica = static_cast<std::uint8_t>(copy / stages);
    const auto stage = static_cast<std::int32_t>(copy % stages);
    report_missing(Rule::Completeness, {Op::ReduceGrad, false, replica, 0, Stage{stage}, {}, {}});
  }
}

void Structure::steps() {
  bool any = false;
  for (const std::size_t count : steps_) any = any || count > 0;
  for (std::size_t r = 0; any && r < steps_.size(); ++r)
    if (steps_[r] == 0)
      report(Rule::Completeness,
             Rank{static_cast<std::int32_t>(r)},
             program_.ranks[r].size(),
             "the optimizer step of rank " + std::to_string(r) + " is missing");
}

}  // namespace millrace::plan
