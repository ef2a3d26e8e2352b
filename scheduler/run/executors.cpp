// make_executor: completes and checks a program, then picks the executor by name.
#include "run/executors.hpp"

#include <set>
#include <string>
#include <utility>

#include "core/names.hpp"
#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/verify.hpp"

namespace millrace {

namespace {

constexpr Names<ExecutorKind, 3> kKinds = {"executor",
                                           {{{"flow-graph", ExecutorKind::FlowGraph},
                                             {"ranks", ExecutorKind::Ranks},
                                             {"sequential", ExecutorKind::Sequential}}}};

constexpr Names<AccumulateOrder, 2> kOrders = {
    "order of accumulation",
    {{{"ascending", AccumulateOrder::Ascending}, {"tree", AccumulateOrder::Tree}}}};

/// The program with everything its executor needs, checked. A receive is posted where it stands,
/// which takes nothing here, and waited for by what uses the message.
Program complete(Program whole, bool messages, int replicas = 1) {
  if (replicas > 1 || whole.shape.replicas() > 1 || !whole.shape.ties.empty())
    whole = insert_reductions(std::move(whole), replicas);
  if (messages) whole = insert_messages_before_use(std::move(whole));
  const auto violations = verify(whole);
  require(violations.empty(),
          [&] { return "the program cannot be executed: " + violations.front().message; });
  return receive_before_use(std::move(whole));
}

}  // namespace

AccumulateOrder accumulate_order(std::string_view name) {
  return kOrders.value(name);
}

std::string_view name_of(AccumulateOrder order) {
  return kOrders.of(order);
}

ExecutorKind executor_kind(std::string_view name) {
  return kKinds.value(name);
}

std::string_view name_of(ExecutorKind kind) {
  return kKinds.of(kind);
}

std::span<const ExecutorKind> executor_kinds() {
  static constexpr auto kAll = kKinds.values();
  return kAll;
}

std::unique_ptr<Executor> make_executor(ExecutorKind kind,
                                        Program program,
                                        std::span<const HostedStage> stages,
                                        const ExecutorOptions& options) {
  Program whole = complete(std::move(program), kind == ExecutorKind::Ranks);
  switch (kind) {
    case ExecutorKind::FlowGraph:
      return run::make_flow_graph(std::move(whole), stages, options);
    case ExecutorKind::Ranks:
      return run::make_ranks(std::move(whole), stages, options);
    case ExecutorKind::Sequential:
      break;
  }
  return run::make_sequential(std::move(whole), stages, options);
}

std::vector<std::string> plan_warnings(const Program& program,
                                       std::span<const HostedStage> stages) {
  std::set<Stage> split;
  for (const auto& list : program.ranks)
    for (const Action& action : list)
      if (action.op == Op::BackwardWeight) split.insert(action.stage);
  std::set<Stage> whole;
  for (const HostedStage& hosted : stages)
    if (!hosted.body->splits_backward() && split.contains(hosted.stage)) whole.insert(hosted.stage);
  std::vector<std::string> messages;
  for (const Stage stage : whole)
    messages.push_back(program.name + " splits the backward of stage " +
                       std::to_string(stage.value) +
                       ", which cannot be split: I runs all of it and W nothing, so that W fills "
                       "no bubble; a schedule with whole backwards (1f1b) promises what it gives");
  return messages;
}

std::unique_ptr<Executor> make_rank_executor(Program program,
                                             std::span<const HostedStage> stages,
                                             const GridPosition& position,
                                             const ExecutorOptions& options) {
  require(position.endpoint() != nullptr, "the executor of one place needs an endpoint");
  require(position.grid().pipeline() == program.shape.ranks, [&] {
    return "the grid's pipelines have " + std::to_string(position.grid().pipeline()) +
           " places; the program has " + std::to_string(program.shape.ranks) + " ranks";
  });
  return run::make_rank(
      complete(std::move(program), true, position.grid().data()), stages, position, options);
}

std::unique_ptr<Executor> make_rank_executor(Program program,
                                             std::span<const HostedStage> stages,
                                             Endpoint& endpoint,
                                             const ExecutorOptions& options) {
  return make_rank_executor(std::move(program), stages, GridPosition(endpoint), options);
}

void run::RankWork::rethrow() const {
  for (std::size_t i = 0; i < failures_.size(); ++i) {
    if (failures_[i] == nullptr) continue;
    const Rank rank{static_cast<int>(i)};
    const std::string where = "optimizer step failed on rank " + std::to_string(i) + ": ";
    Action action;
    action.op = Op::OptimizerStep;
    try {
      std::rethrow_exception(failures_[i]);
    } catch (const StepError&) {
      throw;
    } catch (const std::exception& cause) {
      throw StepError(where + cause.what(), rank, action);
    } catch (...) {
      throw StepError(where + "an unknown exception", rank, action);
    }
  }
}

}  // namespace millrace
