// Portfolio: which generators of the catalogue, with which parameters, a search starts from, and in
// which order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/search.hpp"
#include "plan/schedules/options.hpp"

namespace millrace::plan {

/// A program of the catalogue to be made, or one that is there, and what making it costs.
struct Candidate {
  const ScheduleEntry* entry = nullptr;
  generators::Request options;
  std::int64_t cost = 0;   ///< forwards, times what one costs to make and time by this generator
  std::size_t number = 0;  ///< in the order of the catalogue
  const Program* given = nullptr;  ///< instead of an entry
  int neighbours = 1;              ///< chunks that each stage becomes, all on its rank
};

/// Name of the catalogue, or of the program.
[[nodiscard]] std::string generator_of(const Candidate& candidate);

/// Throws InvalidArgument for counts below 1 and for more forwards than the programs that a search
/// holds at once may have.
void require_counts(const SearchOptions& options);

/// "wave w=2".
[[nodiscard]] std::string title(const Candidate& candidate);

/// Every program of the catalogue with the counts of `options`: one slice, a backward, every v up
/// to 4 (or the one asked for), several groups and waves, memory limits for those that take one.
/// SearchOptions::from first, then the cheapest; of equal cost in the order of the catalogue.
/// Throws InvalidArgument when `from` is not what the other options ask for.
[[nodiscard]] std::vector<Candidate> portfolio(const SearchOptions& options);

/// The program, with pairs where the cost has times for them; nothing where the generator refuses
/// the combination or `options` want another kind. Throws Stopped when the candidate's stop says
/// so.
[[nodiscard]] std::optional<Program> make(const Candidate& candidate, const SearchOptions& options);

/// The cost that `options` gives a shape.
[[nodiscard]] Cost search_cost(const SearchOptions& options, const Shape& shape);

}  // namespace millrace::plan
