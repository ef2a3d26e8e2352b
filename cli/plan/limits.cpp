// What each rank may hold at most, from --memory-limit: numbers, or with suffix p times what p full
// stages keep at F.
#include <algorithm>

#include "cli/plan/options.hpp"
#include "millrace/core/error.hpp"

namespace millrace::cli {

namespace {

// "2q" was meant to end in p.
double plain_limit(const std::string& text) {
  const bool number = text.find_first_not_of("0123456789.+-e") == std::string::npos;
  require(
      number || text.empty(),
      "--memory-limit " + text + ": must be a number, or a number with suffix p (times p x mem-f)");
  return decimal("--memory-limit", text, 0);
}

// One entry of --memory-limit.
double limit_in(std::string text, const PlanOptions& options, int ranks, int stages) {
  const ModelCosts costs = model_costs(options);
  require_memory(costs);
  if (text.empty() || text.back() != 'p') return plain_limit(text);
  text.pop_back();
  require(!text.empty(), "--memory-limit p: must be a number before the p, such as 1p");
  return decimal("--memory-limit", text, 0) * memory_of_all(costs, ranks, stages);
}

}  // namespace

std::vector<double> memory_limits_of(const PlanOptions& options, int ranks, int stages) {
  std::vector<double> limits;
  const std::string& list = options.memory_limit;
  for (std::size_t from = 0; from < list.size() + (list.empty() ? 0U : 1U);) {
    const std::size_t comma = std::min(list.find(',', from), list.size());
    limits.push_back(limit_in(list.substr(from, comma - from), options, ranks, stages));
    from = comma + 1;
  }
  require(limits.size() <= 1 || limits.size() == static_cast<std::size_t>(ranks),
          "--memory-limit has " + value_count(limits.size()) + "; allowed are 1 or one per rank, " +
              std::to_string(ranks));
  return limits;
}

std::optional<double> memory_limit_of(const PlanOptions& options, int ranks, int stages) {
  const std::vector<double> limits = memory_limits_of(options, ranks, stages);
  if (limits.empty()) return std::nullopt;
  return *std::min_element(limits.begin(), limits.end());
}

}  // namespace millrace::cli
