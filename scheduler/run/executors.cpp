// make_executor: completes and checks a program, then picks the executor by name.
#include "millrace/scheduler/run/executors.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <string>
#include <vector>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/verify.hpp"
#include "run/kinds.hpp"

namespace millrace {

namespace {

constexpr std::array<std::string_view, 3> kKinds = {"flow-graph", "ranks", "sequential"};

/// Levenshtein distance.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t change = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({change, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

[[noreturn]] void throw_unknown(std::string_view kind) {
  const auto* nearest =
      std::min_element(kKinds.begin(), kKinds.end(), [&](std::string_view a, std::string_view b) {
        return distance(kind, a) < distance(kind, b);
      });
  std::string text = "there is no executor '" + std::string(kind) + "'; the nearest is '" +
                     std::string(*nearest) + "' of";
  for (const std::string_view known : kKinds)
    text += (known == kKinds.front() ? " " : ", ") + std::string(known);
  throw InvalidArgument(text);
}

/// The program with everything its executor needs, checked.
Program complete(const Program& program, bool messages) {
  Program whole = program;
  if (program.shape.replicas() > 1 && !program.shape.forward_only) whole = insert_reductions(whole);
  if (messages) whole = insert_messages_before_use(whole);
  const auto violations = verify(whole);
  require(violations.empty(),
          "the program cannot be executed: " +
              (violations.empty() ? std::string() : violations.front().sentence));
  return whole;
}

}  // namespace

std::span<const std::string_view> executor_kinds() {
  return kKinds;
}

std::unique_ptr<Executor> make_executor(std::string_view kind,
                                        const Program& program,
                                        std::span<const HostedStage> stages,
                                        const ExecutorOptions& options) {
  if (kind == "flow-graph") return run::make_flow_graph(complete(program, false), stages, options);
  if (kind == "ranks") return run::make_ranks(complete(program, true), stages, options);
  if (kind == "sequential") return run::make_sequential(complete(program, false), stages, options);
  throw_unknown(kind);
}

std::unique_ptr<Executor> make_rank_executor(const Program& program,
                                             std::span<const HostedStage> stages,
                                             Endpoint& endpoint,
                                             const ExecutorOptions& options) {
  require(endpoint.world() == program.shape.ranks,
          "the endpoint's world has " + std::to_string(endpoint.world()) +
              " ranks; the program has " + std::to_string(program.shape.ranks));
  return run::make_rank(complete(program, true), stages, endpoint, options);
}

}  // namespace millrace
