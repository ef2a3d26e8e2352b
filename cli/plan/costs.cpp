// Costs as typed, with the file of --costs.
#include <iostream>
#include <utility>

#include "cli/files.hpp"
#include "cli/plan/options.hpp"
#include "cli/verbs.hpp"
#include "millrace/core/error.hpp"

namespace millrace::cli {

ModelCosts model_costs(const PlanOptions& options) {
  ModelCosts costs = options.costs;
  const std::string& path = options.costs_file;
  if (path.empty()) return costs;
  ParsedCosts read = read_costs(read_file("--costs", path, kCostLimit));
  if (!read.costs) throw DataError(path + ":" + to_string(read.diagnostics.front()));
  costs.file = std::make_shared<const CostFile>(std::move(*read.costs));
  costs.file_name = path;
  require_said_once(costs);
  return costs;
}

std::string told_costs(const ModelCosts& costs) {
  if (!costs.file) return "";
  const std::string& assumed = costs.file->assumed;
  return "Times in " + costs.file->unit + ", from " + costs.file_name + ".\n" +
         (assumed.empty() ? "" : "Assumed: " + assumed + ".\n");
}

Cost cost_of(const Shape& shape, const PlanOptions& options) {
  return millrace::cost_of(shape, model_costs(options));
}

Timeline timeline_of(const Graph& graph, const Cost& cost) {
  auto result = simulate(graph, cost);
  if (auto* timeline = std::get_if<Timeline>(&result)) return std::move(*timeline);
  std::cerr << "millrace: the schedule cannot proceed: " << std::get<Deadlock>(result).message()
            << '\n';
  throw ExitCode{1};
}

}  // namespace millrace::cli
