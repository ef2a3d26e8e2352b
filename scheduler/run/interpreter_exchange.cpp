// What the passes of one rank have to do with others: messages between stages, sums over copies of
// the pipeline, and gradients that replicas and tied stages reduce together.
#include <string>

#include "run/interpreter_state.hpp"

namespace millrace {

namespace {

using run::Instruction;
using run::RankState;
using run::Reduction;

/// The gradients of one copy of a stage on their way to those it is reduced with. Replica numbers
/// from 1 on, so that these never meet the tags of collectives, which have 0 there.
MessageTag gradient_tag(Stage stage, Replica from, std::uint64_t step) {
  return {step, Direction::Collective, Replica{from.value + 1}, stage, MicroBatch{}, Slice{}};
}

}  // namespace

/// Micro-batches count over all passes, so that no two messages of a step have one tag. The
/// data-parallel replica is not in it: the ranks at both ends identify it.
MessageTag Interpreter::State::tag_of(const run::PeerMessage& message) const {
  MessageTag tag = message.tag;
  tag.step = settings.step;
  tag.micro_batch = settings.in_step(tag.micro_batch, program.shape);
  return tag;
}

void Interpreter::State::compile_messages(RankState& at) const {
  if (position.endpoint() == nullptr) return;
  for (Instruction& instruction : at.instructions) {
    if (!is_send(instruction.op) && !is_receive(instruction.op)) continue;
    const Message message = message_of(program.shape, graph, *instruction.action, 0);
    const Rank peer = is_send(instruction.op) ? message.destination : message.source;
    instruction.message = static_cast<std::uint32_t>(at.messages.size());
    at.messages.push_back({position.process(peer),
                           {0,
                            message.direction,
                            message.replica,
                            message.stage,
                            message.unit.micro_batch,
                            message.unit.slice,
                            message.edge}});
  }
}

/// Leaves are the step's micro-batches, over all passes, replica after replica.
void Interpreter::State::begin_sums() {
  if (settings.order == AccumulateOrder::Ascending) return trees.clear();
  require(program.shape.replicas() == 1,
          "gradients are added in the order of a tree where the pipeline has one copy of each "
          "stage; '" +
              program.name + "' has " + std::to_string(program.shape.replicas()));
  trees.resize(counts.size());
  const int leaves = settings.passes * program.shape.micro_batches;
  const int first = position.copy() * leaves;
  for (const HostedStage& hosted : stages) {
    auto& tree = trees[hosted.stage.index()];
    if (tree == nullptr) tree = std::make_unique<run::GradientTree>(hosted);
    tree->begin_step(
        SumTree(position.grid().data() * leaves), {first, first + leaves}, program.shape.slices);
  }
}

int Interpreter::State::leaf_of(MicroBatch micro_batch) const {
  const int leaves = settings.passes * program.shape.micro_batches;
  return position.copy() * leaves + settings.in_step(micro_batch, program.shape).value;
}

void Interpreter::State::send(const Instruction& instruction) {
  if (position.endpoint() == nullptr) return;
  const run::PeerMessage& message = instruction.at->messages[instruction.message];
  position.endpoint()->send(message.process, tag_of(message), values.take(instruction.source));
}

void Interpreter::State::receive(const Instruction& instruction) {
  if (position.endpoint() == nullptr) return;
  const run::PeerMessage& message = instruction.at->messages[instruction.message];
  values.put(instruction.target,
             position.endpoint()->receive(message.process, tag_of(message), deadline()));
}

/// At the last B or W of a stage, and at its REDUCE_GRAD: starts the sum over the copies of the
/// pipeline, and ends it at the latter, or where others wait for it.
void Interpreter::State::add_copies(const Instruction& instruction) {
  if (all_reduces.empty() || !is_last_pass()) return;
  using Progress = run::GradientAllReduce::Progress;
  run::GradientAllReduce& sum = *all_reduces[instruction.counts];
  TensorPool& pool = instruction.at->pool;
  if (sum.progress() == Progress::None)
    sum.start(settings, trees.empty() || trees[instruction.counts]->has_sum(), pool);
  const bool ends = instruction.op == Op::ReduceGrad || sum.is_at_once();
  if (ends && sum.is_under_way()) sum.finish(settings, deadline(), pool);
}

/// Between two actions: what has come for sums over the data-parallel replicas.
void Interpreter::State::go_on_with_sums(TensorPool& pool) {
  for (const auto& sum : all_reduces)
    if (sum != nullptr && sum->is_under_way()) sum->go_on(settings, pool);
}

void Interpreter::State::publish(const Instruction& instruction) const {
  if (!is_last_pass()) return;
  const Stage stage = instruction.action->stage;
  const Replica replica = instruction.action->replica();
  const Reduction& reduction = *instruction.reduction;
  for (const Rank rank : reduction.other_ranks())
    position.endpoint()->send(position.process(rank),
                              gradient_tag(stage, replica, settings.step),
                              reduction.gradients_for(rank, replica, stage, instruction.at->pool));
}

void Interpreter::State::reduce(RankState& at, Reduction& reduction) const {
  if (!is_last_pass() || !reduction.arrive()) return;
  const auto members = reduction.members();
  std::vector<TensorList> received(members.size());
  for (std::size_t i = 0; i < members.size(); ++i)
    if (members[i].body == nullptr)
      received[i] = position.endpoint()->receive(
          position.process(members[i].rank),
          gradient_tag(members[i].stage, members[i].replica, settings.step),
          deadline());
  reduction.add(received, at.pool);
}

}  // namespace millrace
