// make_executor: completes and checks a program, then picks the executor by name.
#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/edit_distance.hpp"
#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/verify.hpp"
#include "millrace/scheduler/run/executor.hpp"
#include "run/kinds.hpp"

namespace millrace {

namespace {

constexpr std::array<std::string_view, 3> kKinds = {"flow-graph", "ranks", "sequential"};

[[noreturn]] void throw_unknown(std::string_view kind) {
  const auto* nearest =
      std::min_element(kKinds.begin(), kKinds.end(), [&](std::string_view a, std::string_view b) {
        return edit_distance(kind, a) < edit_distance(kind, b);
      });
  std::string text = "there is no executor '" + std::string(kind) + "'; the nearest is '" +
                     std::string(*nearest) + "' of";
  for (const std::string_view known : kKinds)
    text += (known == kKinds.front() ? " " : ", ") + std::string(known);
  throw InvalidArgument(text);
}

/// The program with everything its executor needs, checked. A receive is posted where it stands,
/// which takes nothing here, and waited for by what uses the message.
Program complete(Program whole, bool messages, int pipelines = 1) {
  if (pipelines > 1 || whole.shape.replicas() > 1 || !whole.shape.ties.empty())
    whole = insert_reductions(whole, pipelines);
  if (messages) whole = insert_messages_before_use(whole);
  const auto violations = verify(whole);
  require(violations.empty(),
          "the program cannot be executed: " +
              (violations.empty() ? std::string() : violations.front().sentence));
  return receive_before_use(whole);
}

}  // namespace

AccumulateOrder accumulate_order(std::string_view name) {
  if (name == "ascending") return AccumulateOrder::Ascending;
  if (name == "tree") return AccumulateOrder::Tree;
  throw InvalidArgument("unknown order of accumulation '" + std::string(name) +
                        "'; known are ascending, tree");
}

std::string_view name_of(AccumulateOrder order) {
  return order == AccumulateOrder::Ascending ? "ascending" : "tree";
}

std::span<const std::string_view> executor_kinds() {
  return kKinds;
}

std::unique_ptr<Executor> make_executor(std::string_view kind,
                                        Program program,
                                        std::span<const HostedStage> stages,
                                        const ExecutorOptions& options) {
  if (kind == "flow-graph")
    return run::make_flow_graph(complete(std::move(program), false), stages, options);
  if (kind == "ranks") return run::make_ranks(complete(std::move(program), true), stages, options);
  if (kind == "sequential")
    return run::make_sequential(complete(std::move(program), false), stages, options);
  throw_unknown(kind);
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
  std::vector<std::string> sentences;
  for (const Stage stage : whole)
    sentences.push_back(program.name + " splits the backward of stage " +
                        std::to_string(stage.value) +
                        ", which cannot be split: I runs all of it and W nothing, so that W fills "
                        "no bubble; a schedule with whole backwards (1f1b) promises what it gives");
  return sentences;
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

}  // namespace millrace
