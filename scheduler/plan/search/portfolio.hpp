// Portfolio: which generators of the catalogue, with which parameters, a search starts from.
#pragma once

#include <string>
#include <vector>

#include "millrace/scheduler/plan/search.hpp"

namespace millrace::plan {

/// A program of the catalogue and how to ask for it.
struct Seed {
  Program program;
  std::string generator;
  std::vector<ParameterValue> parameters;
};

/// Every program of the catalogue with the counts of `options`: one slice, a backward, every v up
/// to 4 (or the one asked for), several groups and waves, memory limits for those that take one.
/// Combinations that a generator refuses are left out.
[[nodiscard]] std::vector<Seed> portfolio(const SearchOptions& options);

/// The cost that `options` gives a shape.
[[nodiscard]] Cost search_cost(const SearchOptions& options, const Shape& shape);

}  // namespace millrace::plan
