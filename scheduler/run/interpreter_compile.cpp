// Compiling: from a program and the bodies to instructions, slots and reductions.
#include <algorithm>
#include <string>

#include "millrace/core/error.hpp"
#include "run/interpreter_state.hpp"

namespace millrace {

namespace {

using run::Instruction;
using run::RankState;
using run::Reduction;
using run::SlotMap;

std::vector<HostedStage> stages_here(const Program& program,
                                     std::span<const HostedStage> stages,
                                     const GridPosition& position) {
  std::vector<HostedStage> here;
  for (const HostedStage& hosted : stages) {
    require(hosted.replica.value >= 0 && hosted.replica.value < program.shape.replicas() &&
                hosted.stage.value >= 0 && hosted.stage.value < program.shape.stages(),
            "a body was given for stage " + std::to_string(hosted.stage.value) + ", replica " +
                std::to_string(hosted.replica.value) + "; the program has " +
                std::to_string(program.shape.stages()) + " stages in " +
                std::to_string(program.shape.replicas()) + " replicas");
    if (position.hosts(program.shape.rank(hosted.replica, hosted.stage))) here.push_back(hosted);
  }
  return here;
}

/// Which links the hosted stages have an end of.
std::vector<bool> touched_links(const StageGraph& graph, const std::vector<HostedStage>& stages) {
  std::vector<bool> touched(graph.links(), false);
  const auto touch = [&](const StageLink& link) { touched[link.index] = true; };
  for (const HostedStage& hosted : stages) {
    graph.for_each_leaving(hosted.stage, touch);
    graph.for_each_entering(hosted.stage, touch);
  }
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

bool has_reductions(const Program& program) {
  return std::ranges::any_of(program.ranks, [](const std::vector<Action>& list) {
    return std::ranges::any_of(list,
                               [](const Action& action) { return action.op == Op::ReduceGrad; });
  });
}

/// The reductions of a program that has REDUCE_GRAD, and which of them each stage belongs to: none,
/// where it is the only copy and nothing of it is tied.
struct ReductionTable {
  ReductionTable(const Program& program, const StageGraph& graph, BodyTable& bodies)
      : of_stage(static_cast<std::size_t>(graph.stages()), nullptr) {
    if (!has_reductions(program)) return;
    const auto together = graph.reduced_together();
    for (std::size_t stage = 0; stage < together.size(); ++stage) {
      const Stage first = together[stage].front();
      if (program.shape.replicas() == 1 && !graph.is_tied(first)) continue;
      if (first.index() == stage) add(program, graph, bodies, together[stage]);
      of_stage[stage] = of_stage[first.index()];
    }
  }

  void add(const Program& program,
           const StageGraph& graph,
           BodyTable& bodies,
           const std::vector<Stage>& stages) {
    std::vector<run::ReductionMember> members;
    for (const Stage stage : stages)
      for (int replica = 0; replica < program.shape.replicas(); ++replica)
        members.push_back({Replica{replica},
                           stage,
                           program.shape.rank(Replica{replica}, stage),
                           bodies.at(Replica{replica}, stage)});
    std::vector<StageTie> ties;
    for (const StageTie& tie : graph.ties())
      if (std::ranges::find(stages, tie.weights.front().stage) != stages.end()) ties.push_back(tie);
    all.push_back(std::make_unique<Reduction>(std::move(members), std::move(ties)));
    of_stage[stages.front().index()] = all.back().get();
  }

  std::vector<std::unique_ptr<Reduction>> all;
  std::vector<Reduction*> of_stage;
};

/// Turns the actions of one rank into instructions. `adds_copies`: gradients are whole only when
/// those of the pipeline's copies have been added to them, at REDUCE_GRAD.
class Compiler {
 public:
  Compiler(const Program& program,
           BodyTable& bodies,
           const StageGraph& graph,
           const SlotMap& map,
           const std::vector<Reduction*>& reductions,
           bool adds_copies)
      : program_(program),
        bodies_(bodies),
        graph_(graph),
        map_(map),
        reductions_(reductions),
        adds_copies_(adds_copies) {}

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
    instruction.gradient_per_use = instruction.body->takes_gradient_per_use();
    instruction.first_stage = action.stage.value == 0;
    const auto sink = graph_.sink(action.stage);
    instruction.has_loss = sink.has_value();
    instruction.sink = static_cast<std::uint16_t>(sink.value_or(0));
    if (action.op == Op::ReduceGrad)
      instruction.reduction = reductions_[action.stage.index()];
    else
      compile_unit(action, instruction);
    return instruction;
  }

  void compile_unit(const Action& action, Instruction& instruction) const {
    instruction.unit = static_cast<std::uint32_t>(action.micro_batch.value * program_.shape.slices +
                                                  action.slice.value);
    const std::uint32_t unit = instruction.unit;
    const Op op = action.op;
    if (graph_.is_chain() && op == Op::Forward) {
      for_each_link_in(graph_, action, [&](const StageLink& link) {
        instruction.source = map_.activation(link, unit);
      });
      for_each_link_out(graph_, action, [&](const StageLink& link) {
        instruction.target = map_.activation(link, unit);
      });
    }
    if (graph_.is_chain() && gives_input_gradient(op)) {
      for_each_link_in(graph_, action, [&](const StageLink& link) {
        instruction.source = map_.gradient(link, unit);
      });
      for_each_link_out(graph_, action, [&](const StageLink& link) {
        instruction.target = map_.gradient(link, unit);
      });
    }
    if (is_send(op) || is_receive(op)) {
      const auto link = graph_.link(action);
      require(link.has_value(), [&] { return to_string(action) + " has no partner"; });
      const bool forward = op == Op::SendForward || op == Op::RecvForward;
      (is_send(op) ? instruction.source : instruction.target) =
          forward ? map_.activation(*link, unit) : map_.gradient(*link, unit);
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
      auto done = seen[list[i].replica().index()].begin() + list[i].stage.value;
      if (*done) continue;
      *done = true;
      instructions[i].ends_stage = true;
      Reduction* reduction = reductions_[list[i].stage.index()];
      if (adds_copies_ || reduction == nullptr || !reduction->has_members_elsewhere()) continue;
      instructions[i].reduction = reduction;
      instructions[i].publishes = true;
    }
    // A copy that got no micro-batch has no last B or W: its zeros leave at the reduction.
    for (std::size_t i = 0; i < list.size(); ++i)
      if (list[i].op == Op::ReduceGrad && instructions[i].reduction != nullptr &&
          instructions[i].reduction->has_members_elsewhere())
        instructions[i].publishes =
            adds_copies_ || !seen[list[i].replica().index()][list[i].stage.index()];
  }

  const Program& program_;
  BodyTable& bodies_;
  const StageGraph& graph_;
  const SlotMap& map_;
  const std::vector<Reduction*>& reductions_;
  bool adds_copies_;
};

}  // namespace

bool Interpreter::State::takes_all_it_gives() const {
  std::vector<int> left(map.size(), 0);
  const auto count = [&](std::uint32_t slot, int change) {
    if (slot != run::ValueSlots::kNone) left[slot] += change;
  };
  const auto count_links = [&](const Instruction& instruction) {
    const Action& action = *instruction.action;
    const auto slot = [&](const StageLink& link) {
      return action.op == Op::Forward ? map.activation(link, instruction.unit)
                                      : map.gradient(link, instruction.unit);
    };
    for_each_link_in(graph, action, [&](const StageLink& link) { count(slot(link), -1); });
    for_each_link_out(graph, action, [&](const StageLink& link) { count(slot(link), 1); });
  };
  for (const auto& rank : ranks) {
    if (rank == nullptr) continue;
    for (const Instruction& instruction : rank->instructions) {
      if (position.endpoint() == nullptr && !is_compute(instruction.op))
        continue;  // values stay where they are
      if (!graph.is_chain() && is_compute(instruction.op)) count_links(instruction);
      count(instruction.target, 1);
      count(instruction.source, -1);
    }
  }
  return std::all_of(left.begin(), left.end(), [](int count_left) { return count_left == 0; });
}

/// By parameter: whether a sum over the pipeline's own copies or tied weights waits for that over
/// the data-parallel replicas.
std::vector<bool> Interpreter::State::needed_whole(const HostedStage& hosted) const {
  std::vector<bool> needed;
  for (const Parameter* parameter : hosted.body->parameters())
    needed.push_back(program.shape.replicas() > 1 ||
                     std::ranges::any_of(graph.ties(), [&](const StageTie& tie) {
                       return std::ranges::find(tie.weights, parameter->name, &StageWeight::name) !=
                              tie.weights.end();
                     }));
  return needed;
}

/// Of what has no REDUCE_GRAD the sum ends where it starts.
void Interpreter::State::make_all_reduces() {
  const auto stage_count = static_cast<std::size_t>(program.shape.stages());
  std::vector<bool> reduced(stage_count, false);
  for (const auto& list : program.ranks)
    for (const Action& action : list)
      if (action.op == Op::ReduceGrad) reduced[action.stage.index()] = true;
  all_reduces.resize(stage_count * static_cast<std::size_t>(program.shape.replicas()));
  for (const HostedStage& hosted : stages) {
    const std::size_t stage = hosted.stage.index();
    all_reduces[hosted.replica.index() * stage_count + stage] =
        std::make_unique<run::GradientAllReduce>(
            hosted, position, !reduced[stage], needed_whole(hosted));
  }
}

Interpreter::State::State(const Program& of_program,
                          std::span<const HostedStage> hosted,
                          const GridPosition& of_process)
    : program(of_program),
      position(of_process),
      stages(stages_here(of_program, hosted, of_process)),
      graph(of_program.shape),
      map(graph, touched_links(graph, stages), units_of(of_program)),
      wiring(graph, map) {
  BodyTable bodies(program, stages);
  ReductionTable table(program, graph, bodies);
  Compiler compiler(program, bodies, graph, map, table.of_stage, position.grid().data() > 1);
  reductions = std::move(table.all);
  for (int i = 0; i < static_cast<int>(program.ranks.size()); ++i) {
    ranks.emplace_back();
    if (!position.hosts(Rank{i})) continue;
    ranks.back() = std::make_unique<RankState>();
    ranks.back()->rank = Rank{i};
    ranks.back()->instructions = compiler.compile(*ranks.back());
    compile_messages(*ranks.back());
  }
  if (position.grid().data() > 1) make_all_reduces();
  balanced = takes_all_it_gives();
  values.resize(map.size());
  counts.resize(static_cast<std::size_t>(program.shape.stages() * program.shape.replicas()));
  first_samples.resize(units_of(program));
  first_positions.resize(units_of(program));
  empty.resize(units_of(program));
  targets.resize(graph.sinks() * units_of(program));
  losses.resize(graph.sinks() * units_of(program));
  rows.resize(units_of(program));
  if (program.shape.forward_only) outputs.resize(units_of(program));
  for (const HostedStage& stage : stages)
    stage.body->reserve(program.shape.micro_batches, program.shape.slices);
}

}  // namespace millrace
