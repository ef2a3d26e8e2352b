// Compiling: from a program and the bodies to instructions, slots and reductions.
#include <algorithm>
#include <string>

#include "millrace/core/error.hpp"
#include "run/interpreter_state.hpp"

namespace millrace {

namespace run {

SlotMap::SlotMap(const std::vector<bool>& touched, std::uint32_t units) : units_(units) {
  for (const bool here : touched)
    row_.push_back(here ? static_cast<std::uint32_t>(borders_++) : ValueSlots::kNone);
}

std::uint32_t SlotMap::input_of(Stage stage, std::uint32_t unit) const {
  return row_[stage.index()] * units_ + unit;
}

std::uint32_t SlotMap::gradient_of(Stage stage, std::uint32_t unit) const {
  const auto behind_inputs = static_cast<std::uint32_t>(borders_) * units_;
  return behind_inputs + row_[stage.index() + 1] * units_ + unit;
}

std::string SlotMap::name(std::size_t slot, int slices) const {
  const std::size_t inputs = borders_ * units_;
  const bool gradient = slot >= inputs;
  const std::size_t row = (gradient ? slot - inputs : slot) / units_;
  const auto unit = static_cast<int>((gradient ? slot - inputs : slot) % units_);
  const auto border = std::find(row_.begin(), row_.end(), static_cast<std::uint32_t>(row));
  const auto stage = border - row_.begin() - (gradient ? 1 : 0);
  std::string text = gradient ? "the gradient for stage " : "the activation for stage ";
  text += std::to_string(stage) + ", micro-batch " + std::to_string(unit / slices);
  if (slices > 1) text += ", slice " + std::to_string(unit % slices);
  return text;
}

}  // namespace run

namespace {

using run::Instruction;
using run::RankState;
using run::Reduction;
using run::SlotMap;

bool runs_here(const Endpoint* endpoint, Rank rank) {
  return endpoint == nullptr || endpoint->rank() == rank;
}

std::vector<HostedStage> stages_here(const Program& program,
                                     std::span<const HostedStage> stages,
                                     const Endpoint* endpoint) {
  std::vector<HostedStage> here;
  for (const HostedStage& hosted : stages) {
    require(hosted.replica.value >= 0 && hosted.replica.value < program.shape.replicas() &&
                hosted.stage.value >= 0 && hosted.stage.value < program.shape.stages(),
            "a body was given for stage " + std::to_string(hosted.stage.value) + ", replica " +
                std::to_string(hosted.replica.value) + "; the program has " +
                std::to_string(program.shape.stages()) + " stages in " +
                std::to_string(program.shape.replicas()) + " replicas");
    if (runs_here(endpoint, program.shape.rank(hosted.replica, hosted.stage)))
      here.push_back(hosted);
  }
  return here;
}

/// Which borders (before stage s, for s in 0..S) the hosted stages touch.
std::vector<bool> touched_borders(const Program& program, const std::vector<HostedStage>& stages) {
  std::vector<bool> touched(static_cast<std::size_t>(program.shape.stages()) + 1, false);
  for (const HostedStage& hosted : stages) {
    touched[hosted.stage.index()] = true;
    touched[hosted.stage.index() + 1] = true;
  }
  touched.front() = false;
  touched.back() = false;
  return touched;
}

std::uint32_t units_of(const Program& program) {
  return static_cast<std::uint32_t>(program.shape.micro_batches) *
         static_cast<std::uint32_t>(program.shape.slices);
}

/// Bodies by [replica][stage]; throws when one is given twice.
class BodyTable {
 public:
  BodyTable(const Program& program, const std::vector<HostedStage>& stages)
      : stages_(program.shape.stages()),
        bodies_(static_cast<std::size_t>(stages_ * program.shape.replicas()), nullptr) {
    for (const HostedStage& hosted : stages) {
      require(hosted.body != nullptr,
              "the body of stage " + std::to_string(hosted.stage.value) + " is null");
      StageBody*& place = at(hosted.replica, hosted.stage);
      require(place == nullptr,
              "stage " + std::to_string(hosted.stage.value) + ", replica " +
                  std::to_string(hosted.replica.value) + " was given two bodies");
      place = hosted.body;
    }
  }

  StageBody*& at(Replica replica, Stage stage) { return bodies_[place(replica, stage)]; }

  [[nodiscard]] std::uint32_t place(Replica replica, Stage stage) const {
    return static_cast<std::uint32_t>(replica.value * stages_ + stage.value);
  }

 private:
  int stages_;
  std::vector<StageBody*> bodies_;
};

std::vector<std::unique_ptr<Reduction>> reductions_of(const Program& program, BodyTable& bodies) {
  std::vector<std::unique_ptr<Reduction>> reductions(
      static_cast<std::size_t>(program.shape.stages()));
  if (program.shape.replicas() == 1) return reductions;
  for (const auto& list : program.ranks)
    for (const Action& action : list) {
      if (action.op != Op::ReduceGrad || reductions[action.stage.index()] != nullptr) continue;
      auto reduction = std::make_unique<Reduction>();
      reduction->stage = action.stage;
      for (int i = 0; i < program.shape.replicas(); ++i) {
        reduction->bodies.push_back(bodies.at(Replica{i}, action.stage));
        reduction->rank_of.push_back(program.shape.rank(Replica{i}, action.stage));
        if (reduction->bodies.back() != nullptr) ++reduction->local_copies;
      }
      reductions[action.stage.index()] = std::move(reduction);
    }
  return reductions;
}

bool has_copies_elsewhere(const Reduction& reduction) {
  return reduction.local_copies < static_cast<int>(reduction.bodies.size());
}

/// Turns the actions of one rank into instructions.
class Compiler {
 public:
  Compiler(const Program& program,
           BodyTable& bodies,
           const SlotMap& map,
           std::vector<std::unique_ptr<Reduction>>& reductions)
      : program_(program), bodies_(bodies), map_(map), reductions_(reductions) {}

  std::vector<Instruction> compile(RankState& at) {
    const auto list = program_.on(at.rank);
    std::vector<Instruction> instructions;
    instructions.reserve(list.size());
    for (const Action& action : list) {
      instructions.push_back(compile(at.rank, action));
      instructions.back().at = &at;
      instructions.back().action = &action;
    }
    mark_recomputed(list, instructions);
    mark_publishing(list, instructions);
    return instructions;
  }

 private:
  Instruction compile(Rank rank, const Action& action) {
    Instruction instruction;
    instruction.op = action.op;
    instruction.micro_batch = action.micro_batch;
    instruction.slice = action.slice;
    if (action.op == Op::OptimizerStep) return instruction;
    instruction.body = bodies_.at(action.replica(), action.stage);
    require(instruction.body != nullptr,
            "stage " + std::to_string(action.stage.value) + " of replica " +
                std::to_string(action.replica_number) + " runs on rank " +
                std::to_string(rank.value) + " but was given no body");
    instruction.counts = bodies_.place(action.replica(), action.stage);
    instruction.whole_backward = !instruction.body->splits_backward();
    instruction.first_stage = action.stage.value == 0;
    instruction.last_stage = action.stage.value == program_.shape.stages() - 1;
    if (action.op == Op::ReduceGrad)
      instruction.reduction = reductions_[action.stage.index()].get();
    else
      compile_unit(action, instruction);
    return instruction;
  }

  void compile_unit(const Action& action, Instruction& instruction) const {
    instruction.unit = static_cast<std::uint32_t>(action.micro_batch.value * program_.shape.slices +
                                                  action.slice.value);
    const Stage next{action.stage.value + 1};
    const Stage before{action.stage.value - 1};
    const auto input = [&](Stage stage) { return map_.input_of(stage, instruction.unit); };
    const auto gradient = [&](Stage stage) { return map_.gradient_of(stage, instruction.unit); };

    const Op op = action.op;
    if (op == Op::Forward || op == Op::RecvForward || op == Op::SendForward) {
      if (!instruction.first_stage && op == Op::Forward) instruction.source = input(action.stage);
      if (!instruction.last_stage && op == Op::Forward) instruction.target = input(next);
      if (op == Op::RecvForward) instruction.target = input(action.stage);
      if (op == Op::SendForward) instruction.source = input(next);
    }
    if (gives_input_gradient(op) || op == Op::RecvBackward || op == Op::SendBackward) {
      const bool computes = gives_input_gradient(op);
      if (!instruction.last_stage && computes) instruction.source = gradient(action.stage);
      if (!instruction.first_stage && computes) instruction.target = gradient(before);
      if (op == Op::RecvBackward) instruction.target = gradient(action.stage);
      if (op == Op::SendBackward) instruction.source = gradient(before);
    }
    instruction.ends_unit = gives_weight_gradient(op) || program_.shape.forward_only;
  }

  /// A forward keeps its input only when the program recomputes the unit later.
  void mark_recomputed(std::span<const Action> list, std::vector<Instruction>& instructions) const {
    const auto units = units_of(program_);
    std::vector<bool> recomputed(static_cast<std::size_t>(program_.shape.stages()) * units, false);
    const auto at = [&](std::size_t i) {
      return list[i].stage.index() * units + instructions[i].unit;
    };
    for (std::size_t i = 0; i < list.size(); ++i)
      if (list[i].op == Op::Recompute) recomputed[at(i)] = true;
    for (std::size_t i = 0; i < list.size(); ++i)
      if (list[i].op == Op::Forward) instructions[i].recompute_later = recomputed[at(i)];
  }

  void mark_publishing(std::span<const Action> list, std::vector<Instruction>& instructions) const {
    std::vector<std::vector<bool>> seen(static_cast<std::size_t>(program_.shape.replicas()),
                                        std::vector<bool>(reductions_.size(), false));
    for (std::size_t i = list.size(); i-- > 0;) {
      if (!gives_weight_gradient(list[i].op)) continue;
      Reduction* reduction = reductions_[list[i].stage.index()].get();
      if (reduction == nullptr || !has_copies_elsewhere(*reduction)) continue;
      auto done = seen[list[i].replica().index()].begin() + list[i].stage.value;
      if (*done) continue;
      *done = true;
      instructions[i].reduction = reduction;
      instructions[i].publishes = true;
    }
    // A copy that got no micro-batch has no last B or W: its zeros leave at the reduction.
    for (std::size_t i = 0; i < list.size(); ++i)
      if (list[i].op == Op::ReduceGrad && instructions[i].reduction != nullptr &&
          has_copies_elsewhere(*instructions[i].reduction))
        instructions[i].publishes = !seen[list[i].replica().index()][list[i].stage.index()];
  }

  const Program& program_;
  BodyTable& bodies_;
  const SlotMap& map_;
  std::vector<std::unique_ptr<Reduction>>& reductions_;
};

}  // namespace

bool Interpreter::State::takes_all_it_gives() const {
  std::vector<int> left(map.size(), 0);
  for (const auto& rank : ranks) {
    if (rank == nullptr) continue;
    for (const Instruction& instruction : rank->instructions) {
      if (endpoint == nullptr && !is_compute(instruction.op))
        continue;  // values stay where they are
      if (instruction.target != run::ValueSlots::kNone) ++left[instruction.target];
      if (instruction.source != run::ValueSlots::kNone) --left[instruction.source];
    }
  }
  return std::all_of(left.begin(), left.end(), [](int count) { return count == 0; });
}

Interpreter::State::State(const Program& of_program,
                          std::span<const HostedStage> hosted,
                          Endpoint* to_others)
    : program(of_program),
      endpoint(to_others),
      stages(stages_here(of_program, hosted, to_others)),
      map(touched_borders(of_program, stages), units_of(of_program)) {
  BodyTable bodies(program, stages);
  reductions = reductions_of(program, bodies);
  Compiler compiler(program, bodies, map, reductions);
  for (int i = 0; i < static_cast<int>(program.ranks.size()); ++i) {
    ranks.emplace_back();
    if (!runs_here(endpoint, Rank{i})) continue;
    ranks.back() = std::make_unique<RankState>();
    ranks.back()->rank = Rank{i};
    ranks.back()->instructions = compiler.compile(*ranks.back());
  }
  balanced = takes_all_it_gives();
  values.resize(map.size());
  counts.resize(static_cast<std::size_t>(program.shape.stages() * program.shape.replicas()));
  first_samples.resize(units_of(program));
  targets.resize(units_of(program));
  losses.resize(units_of(program));
  rows.resize(units_of(program));
  if (program.shape.forward_only) outputs.resize(units_of(program));
  for (const HostedStage& stage : stages)
    stage.body->reserve(program.shape.micro_batches, program.shape.slices);
}

}  // namespace millrace
