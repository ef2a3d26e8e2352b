// How a trainer gets its parts when it makes them itself.
#pragma once

#include <memory>
#include <vector>

#include "millrace/scheduler/plan/program.hpp"
#include "millrace/stages/models.hpp"
#include "millrace/training/trainer.hpp"

namespace millrace {

/// The compute-only program that the options ask for.
Program training_program(const TrainerOptions& options);

/// Throws InvalidArgument for a shape whose stages are no chain, which the layers of a model are.
void require_chain(const Shape& shape);

/// A body for every (replica, stage) of the shape, cut by the options; copies start equal.
std::vector<std::unique_ptr<StageBody>> model_bodies(const ModelSpec& model,
                                                     const Shape& shape,
                                                     const TrainerOptions& options);

/// Executors over all stages in this process.
TrainerParts assemble(const Program& compute,
                      std::vector<std::unique_ptr<StageBody>> bodies,
                      const TrainerOptions& options);

}  // namespace millrace
