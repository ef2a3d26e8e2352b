// The members of ModelCosts by name, for whoever reads or writes costs by names: one table.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "millrace/scheduler/plan/model_costs.hpp"

namespace millrace {

/// A member of ModelCosts under its own name.
template <class Value>
struct CostMember {
  const char* name;
  Value ModelCosts::*member;
};

/// Times, memory and gradients, which a cost file may say, too. An empty list is the default.
inline constexpr std::array<CostMember<std::vector<double>>, 10> kCostLists = {
    {{"forward", &ModelCosts::forward},
     {"input", &ModelCosts::input},
     {"weight", &ModelCosts::weight},
     {"recompute_time", &ModelCosts::recompute_time},
     {"slice_costs", &ModelCosts::slice_costs},
     {"memory_forward", &ModelCosts::memory_forward},
     {"memory_input", &ModelCosts::memory_input},
     {"memory_weight", &ModelCosts::memory_weight},
     {"memory_boundary", &ModelCosts::memory_boundary},
     {"gradient_bytes", &ModelCosts::gradient_bytes}}};

/// Of links and processors.
inline constexpr std::array<CostMember<std::vector<double>>, 3> kMachineLists = {
    {{"latency", &ModelCosts::latency},
     {"bandwidth", &ModelCosts::bandwidth},
     {"rank_speed", &ModelCosts::rank_speed}}};

/// Numbers that may be absent.
inline constexpr std::array<CostMember<std::optional<double>>, 2> kCostNumbers = {
    {{"message_bytes", &ModelCosts::message_bytes}, {"pair_cost", &ModelCosts::pair_cost}}};

inline constexpr std::array<CostMember<bool>, 4> kCostFlags = {
    {{"chunk_costs", &ModelCosts::chunk_costs},
     {"contention", &ModelCosts::contention},
     {"atomic_pairs", &ModelCosts::atomic_pairs},
     {"tree_of_sums", &ModelCosts::tree_of_sums}}};

}  // namespace millrace
