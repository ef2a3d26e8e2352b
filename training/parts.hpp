// How a trainer gets its parts when it makes them itself: one way for all stages in this process
// and for those of one rank.
#pragma once

#include <memory>
#include <vector>

#include "millrace/scheduler/plan/program.hpp"
#include "millrace/scheduler/run/grid.hpp"
#include "millrace/stages/models.hpp"
#include "millrace/training/trainer.hpp"
#include "millrace/transport/process_group.hpp"

namespace millrace {

/// Which part of a training this process is: a place in the grid, or all of them; and the group of
/// all processes, if there are several.
struct Seat {
  GridPosition of_grid;
  ProcessGroup* group = nullptr;
};

/// The compute-only program that the options ask for.
Plan plan_of(const PipelineOptions& pipeline);

/// Throws InvalidArgument unless the program can run as many passes a step as the options state.
void check_passes(const StepOptions& options, const Shape& shape);

/// Executors over the stages at the seat: `bodies` has one for each, replica after replica, in
/// ascending stage order. Throws InvalidArgument for another number of bodies, for boundaries, and
/// for a program that cannot train or has another number of ranks than the grid's pipelines.
TrainerParts assemble(const Plan& plan,
                      Bodies bodies,
                      const TrainerOptions& options,
                      const Seat& seat);

/// As above with the model's stages and the edges between them; data-parallel replicas start equal.
/// Throws InvalidArgument for another number of boundaries than the program has stages, and for a
/// program whose own edges differ.
TrainerParts assemble(const ModelSpec& model,
                      const Plan& plan,
                      const TrainerOptions& options,
                      const Seat& seat);

}  // namespace millrace
