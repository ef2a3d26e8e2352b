// The effects of the actions, one function each, and the frame of a step around them.
#include "run/interpreter.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "run/interpreter_state.hpp"

namespace millrace {

namespace {

using run::Instruction;
using run::TensorCounts;

/// Of weights: B; W, or I where the body does not split.
bool adds_gradients(const Instruction& instruction) {
  return instruction.op == Op::Backward ||
         instruction.op == (instruction.whole_backward ? Op::BackwardInput : Op::BackwardWeight);
}

}  // namespace

std::string Interpreter::State::failure_text(const Action& action,
                                             Rank rank,
                                             const std::string& cause) const {
  std::string text = describe(action);
  if (settings.passes > 1)
    text +=
        " in pass " + std::to_string(settings.pass + 1) + " of " + std::to_string(settings.passes);
  return text + " failed on " + position.name_of(rank) + ": " + cause;
}

PassContext Interpreter::State::context(const Instruction& instruction) const {
  PassContext context = of_step;
  context.micro_batch = instruction.micro_batch;
  context.slice = instruction.slice;
  context.first_sample = first_samples[instruction.unit];
  context.first_position = first_positions[instruction.unit];
  context.recompute_later = instruction.recompute_later;
  context.pool = &instruction.at->pool;
  context.meter = &instruction.at->meter;
  context.workers = instruction.at->workers.get();
  if (!instruction.has_loss) return context;
  if (!settings.loss_scales.empty()) context.loss_scale = settings.loss_scales[instruction.sink];
  const TensorList& own = targets[of_sink(instruction)];
  if (!own.empty()) context.targets = &own;
  return context;
}

void Interpreter::State::forward(const Instruction& instruction) {
  if (instruction.has_loss) targets[of_sink(instruction)] = targets_for(instruction);
  PassContext pass = context(instruction);
  if (instruction.has_loss) pass.loss = &losses[of_sink(instruction)];
  TensorList taken = inputs_for(instruction);
  counts[instruction.counts].forward_takes(taken);
  if (instruction.first_stage) rows[instruction.unit] = taken.empty() ? 0 : taken[0].rows();
  give_outputs(instruction, instruction.body->forward(pass, std::move(taken)));
}

TensorList Interpreter::State::targets_for(const Instruction& instruction) {
  const Action& action = *instruction.action;
  return is_main(instruction) ? data->targets(action.unit())
                              : data->targets_of(action.unit(), action.stage);
}

TensorList Interpreter::State::inputs_for(const Instruction& instruction) {
  if (instruction.first_stage) return data->inputs(instruction.action->unit());
  if (graph.is_chain()) return values.take(instruction.source);
  return wiring.inputs(values, instruction.action->stage, instruction.unit, instruction.at->pool);
}

void Interpreter::State::give_outputs(const Instruction& instruction, TensorList given) {
  if (!instruction.has_loss) {
    counts[instruction.counts].forward_gives(given);
    if (graph.is_chain())
      values.put(instruction.target, std::move(given));
    else
      wiring.give_outputs(values,
                          instruction.action->stage,
                          instruction.unit,
                          std::move(given),
                          instruction.at->pool);
  } else if (program.shape.forward_only) {
    if (!is_main(instruction)) return;
    data->predicted(instruction.action->unit(), given);
    outputs[instruction.unit] = std::move(given);
  } else {
    TensorCounts::last_forward_gives(given);
  }
}

/// Only the forward adds to the loss of the step; what a later pass writes is not wanted.
PassContext Interpreter::State::backward_context(const Instruction& instruction,
                                                 LossSum& ignored) const {
  PassContext pass = context(instruction);
  if (instruction.has_loss) pass.loss = &ignored;
  return pass;
}

TensorList Interpreter::State::gradients_for(const Instruction& instruction) {
  if (instruction.has_loss) return {};
  if (!graph.is_chain() && instruction.gradient_per_use)
    return wiring.gradients_per_use(values, instruction.action->stage, instruction.unit);
  TensorList gradients =
      graph.is_chain() ? values.take(instruction.source)
                       : wiring.gradients(values, instruction.action->stage, instruction.unit);
  counts[instruction.counts].backward_takes(gradients);
  return gradients;
}

void Interpreter::State::give_gradients(const Instruction& instruction, TensorList gradients) {
  if (instruction.first_stage) return counts[instruction.counts].first_backward_gives(gradients);
  counts[instruction.counts].backward_gives(gradients);
  if (graph.is_chain()) return values.put(instruction.target, std::move(gradients));
  wiring.give_gradients(values, instruction.action->stage, instruction.unit, std::move(gradients));
}

void Interpreter::State::backward(const Instruction& instruction) {
  LossSum ignored;
  const PassContext pass = backward_context(instruction, ignored);
  StageBody& body = *instruction.body;
  const bool whole = instruction.whole_backward && instruction.op == Op::BackwardInput;
  if (instruction.op == Op::Backward || whole)
    give_gradients(instruction, body.backward(pass, gradients_for(instruction)));
  else if (instruction.op == Op::BackwardInput)
    give_gradients(instruction, body.backward_input(pass, gradients_for(instruction)));
  else if (instruction.op == Op::Recompute)
    body.recompute(pass);
  else if (!instruction.whole_backward)
    body.backward_weight(pass);
}

/// A backward that adds to gradients, between what the tree of sums does around it.
void Interpreter::State::add_backward(const Instruction& instruction) {
  run::GradientTree* const tree = trees.empty() ? nullptr : trees[instruction.counts].get();
  if (tree == nullptr || !adds_gradients(instruction)) return backward(instruction);
  run::RankState& at = *instruction.at;
  tree->open(leaf_of(instruction.micro_batch), at.pool, at.sums);
  backward(instruction);
  tree->close(empty[instruction.unit], at.pool, at.sums);
}

void Interpreter::State::perform(const Instruction& instruction) {
  if (!all_reduces.empty()) go_on_with_sums(instruction.at->pool);
  switch (instruction.op) {
    case Op::Forward:
      forward(instruction);
      break;
    case Op::Backward:
    case Op::BackwardInput:
    case Op::BackwardWeight:
    case Op::Recompute:
      add_backward(instruction);
      break;
    case Op::SendForward:
    case Op::SendBackward:
      return send(instruction);
    case Op::RecvForward:
    case Op::RecvBackward:
      return receive(instruction);
    case Op::ReduceGrad:
      add_copies(instruction);
      if (instruction.reduction == nullptr) return;  // the sum of one copy
      if (instruction.publishes) publish(instruction);
      return reduce(*instruction.at, *instruction.reduction);
    case Op::OptimizerStep:
      return;
  }
  if (instruction.has_loss && instruction.ends_unit) targets[of_sink(instruction)].clear();
  if (instruction.ends_stage) add_copies(instruction);
  if (instruction.publishes) publish(instruction);
}

void Interpreter::State::check_nothing_left() const {
  const std::string step = "after step " + std::to_string(settings.step) + " ";
  for (const auto& tree : trees)
    if (tree != nullptr && !(is_last_pass() ? tree->is_complete() : tree->is_between_leaves()))
      throw Error(step + "gradients of some micro-batches are not in the sum");
  if (const std::size_t slot = balanced ? values.size() : values.first_full(); slot < values.size())
    throw Error(step + map.name(slot, program.shape.slices) + " was never used");
  for (const HostedStage& hosted : stages)
    if (const std::size_t units = hosted.body->stashed_units(); units != 0)
      throw Error(step + "stage " + std::to_string(hosted.stage.value) + " still has a stash for " +
                  std::to_string(units) + " units");
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] == nullptr) continue;
    const std::size_t sums = is_last_pass() ? ranks[i]->sums.bytes : 0;
    for (const auto& [bytes, kind] :
         {std::pair(ranks[i]->meter.bytes, "stashed bytes"), {sums, "bytes of partial sums"}})
      if (bytes != 0)
        throw Error(step + "rank " + std::to_string(i) + " has " + std::to_string(bytes) + " " +
                    kind + " more than it gave back");
  }
}

void Interpreter::State::drop() noexcept {
  values.clear();
  for (TensorList& list : targets) list.clear();
  for (TensorList& list : outputs) list.clear();
  for (const HostedStage& hosted : stages) hosted.body->abandon_step();
  trees.clear();
  data = nullptr;
}

Interpreter::Interpreter(const Program& program,
                         std::span<const HostedStage> stages,
                         const GridPosition& position,
                         int threads_per_rank)
    : state_(std::make_unique<State>(program, stages, position)) {
  for (const auto& rank : state_->ranks)
    if (rank != nullptr) rank->workers = run::make_workers(threads_per_rank);
}

Interpreter::~Interpreter() = default;

bool Interpreter::hosts(Rank rank) const {
  return state_->ranks[rank.index()] != nullptr;
}

void Interpreter::use(Endpoint& endpoint) {
  GridPosition& position = state_->position;
  require(position.endpoint() != nullptr && position.endpoint()->rank() == endpoint.rank(),
          "the new endpoint is of rank " + std::to_string(endpoint.rank().value) +
              "; it must be of the rank of the one it replaces");
  position = GridPosition(endpoint, position.grid());
}

void Interpreter::begin_step(StepData& data, const StepSettings& settings) {
  State& state = *state_;
  const Shape& shape = state.program.shape;
  require(settings.training != shape.forward_only,
          settings.training ? "a forward-only program cannot train; it has no backward"
                            : "evaluation needs a forward-only program; this one has backwards");
  require(settings.pass >= 0 && settings.pass < settings.passes, [&] {
    return "a step of " + std::to_string(settings.passes) + " passes has no pass " +
           std::to_string(settings.pass);
  });
  state.data = &data;
  state.settings = settings;
  state.of_step.seed = settings.seed;
  state.of_step.step = settings.step;
  state.of_step.training = settings.training;
  state.of_step.slices = shape.slices;
  state.of_step.loss_scale = settings.loss_scale;
  std::ranges::fill(state.losses, LossSum());
  for (std::size_t unit = 0; unit < state.rows.size(); ++unit) {
    const auto number = static_cast<int>(unit);
    state.rows[unit] = 0;
    const Unit of{MicroBatch{number / shape.slices}, Slice{number % shape.slices}};
    state.first_samples[unit] = data.first_sample(of);
    state.first_positions[unit] = data.first_position(of);
    state.empty[unit] = data.is_empty(of);
  }
  if (settings.pass == 0) state.begin_sums();
  for (const auto& rank : state.ranks) {
    if (rank == nullptr) continue;
    rank->meter = {};
    if (settings.pass == 0) rank->sums = {};
  }
  for (TensorCounts& counts : state.counts) counts.begin_step();
  for (const auto& reduction : state.reductions) reduction->begin_step();
  for (const auto& sum : state.all_reduces)
    if (sum != nullptr) sum->begin_step();
}

const Instruction& Interpreter::compiled(Rank rank, std::size_t position) const {
  return state_->ranks[rank.index()]->instructions[position];
}

void Interpreter::execute(Rank rank, std::size_t position) {
  execute(compiled(rank, position));
}

void Interpreter::execute(const Instruction& instruction) {
  State& state = *state_;
  const auto failed = [&](const std::string& cause) {
    const Rank rank = instruction.at->rank;
    return StepError(
        state.failure_text(*instruction.action, rank, cause), rank, *instruction.action);
  };
  try {
    state.perform(instruction);
  } catch (const Cancelled&) {
    if (state.position.endpoint() != nullptr) throw;
    throw failed("cancelled");
  } catch (const std::exception& cause) {
    throw failed(cause.what());
  } catch (...) {
    throw failed("an unknown exception");
  }
}

StepResult Interpreter::end_step() {
  State& state = *state_;
  try {
    state.check_nothing_left();
  } catch (const Error&) {
    state.drop();
    throw;
  }
  StepResult result;
  const auto units = static_cast<std::ptrdiff_t>(state.rows.size());
  const auto main = state.losses.cend() - units;
  result.unit_losses.assign(main, state.losses.cend());
  for (auto other = state.losses.cbegin(); other != main; other += units)
    result.other_losses.emplace_back(other, other + units);
  for (const LossSum& loss : result.unit_losses) result.loss += loss;
  for (std::size_t unit = 0; unit < state.rows.size();
       unit += static_cast<std::size_t>(state.program.shape.slices))
    result.samples += state.rows[unit];
  for (TensorList& list : state.outputs) result.outputs.push_back(std::move(list));
  result.peak_stash_bytes.reserve(state.ranks.size());
  for (const auto& rank : state.ranks) {
    result.peak_stash_bytes.push_back(rank == nullptr ? 0 : rank->meter.peak);
    if (!state.trees.empty())
      result.peak_sum_bytes.push_back(rank == nullptr ? 0 : rank->sums.peak);
  }
  state.data = nullptr;
  return result;
}

void Interpreter::abandon_step() noexcept {
  state_->drop();
}

}  // namespace millrace
