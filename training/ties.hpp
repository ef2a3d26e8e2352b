// Tied weights by the names that a user gives: declared in the program's shape, where REDUCE_GRAD
// finds them, and made to start equal.
#pragma once

#include <span>

#include "millrace/training/state.hpp"
#include "millrace/training/trainer.hpp"

namespace millrace {

/// Groups of parameters that are one weight: StepOptions::tied.
using TiedNames = std::vector<std::vector<std::string>>;

/// The program with the groups among the ties of its shape, each in the order of
/// the layers: by stage, and in a stage in the order of its parameters. A collective of the group.
/// Throws InvalidArgument when a group has fewer than two names, a name does not exist or is tied
/// twice, or shapes differ.
[[nodiscard]] Program with_ties(const Program& program,
                                std::span<const HostedStage> stages,
                                const TiedNames& groups,
                                ProcessGroup& group);

/// The names of every tie of a shape. Throws InvalidArgument when a group
/// is not one of them: parts of your own whose program does not declare it.
[[nodiscard]] std::vector<std::vector<std::string>> tied_names(const Shape& shape,
                                                               const TiedNames& groups);

/// Gives all weights of a tie the value of the one that its group names first, else of that of
/// the first layer. A collective of the group.
void share_tied_values(TrainingState& state,
                       const std::vector<std::vector<std::string>>& tied,
                       const TiedNames& groups,
                       ProcessGroup& group);

}  // namespace millrace
