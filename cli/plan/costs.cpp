// Costs as typed, with the file of --costs, and what each rank may hold.
#include <algorithm>
#include <iostream>
#include <utility>

#include "cli/files.hpp"
#include "cli/plan/options.hpp"
#include "cli/subcommands.hpp"
#include "millrace/core/error.hpp"

namespace millrace::cli {

Costs costs_in(const std::string& option, const std::string& path) {
  ParsedCosts read = read_costs(read_file(option, path, kCostLimit));
  if (!read.costs) throw DataError(path + ":" + to_string(read.diagnostics.front()));
  return std::move(*read.costs);
}

Costs model_costs(const PlanOptions& options) {
  const std::string& path = options.costs_file;
  return path.empty() ? options.costs : over(costs_in("--costs", path), path, options.costs);
}

std::string units_text(const Costs& costs) {
  if (!costs.file)
    return "Times in units of --f --i --w, memory in units of --mem-f; without them F = I = W = "
           "1.\n";
  const std::string& assumed = costs.file->assumed;
  return "Times in " + costs.file->unit + ", from " + costs.file_name + ".\n" +
         (assumed.empty() ? "" : "Assumed: " + assumed + ".\n");
}

Cost cost_of(const Shape& shape, const PlanOptions& options) {
  return millrace::cost_of(shape, model_costs(options));
}

std::vector<double> memory_limits_of(const PlanOptions& options, int ranks, int stages) {
  return memory_limits(options.memory_limit, model_costs(options), ranks, stages);
}

std::optional<double> memory_limit_of(const PlanOptions& options, int ranks, int stages) {
  const std::vector<double> limits = memory_limits_of(options, ranks, stages);
  if (limits.empty()) return std::nullopt;
  return *std::min_element(limits.begin(), limits.end());
}

Timeline timeline_of(const Graph& graph, const Cost& cost) {
  auto result = simulate(graph, cost);
  if (auto* timeline = std::get_if<Timeline>(&result)) return std::move(*timeline);
  std::cerr << "millrace: the schedule cannot proceed: " << std::get<Deadlock>(result).message()
            << '\n';
  throw ExitCode{1};
}

}  // namespace millrace::cli
