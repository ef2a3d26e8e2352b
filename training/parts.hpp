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
Program training_program(const TrainerOptions& options);

/// Throws InvalidArgument unless the program can run as many passes a step as the options say.
void check_passes(const TrainerOptions& options, const Shape& shape);

/// Executors over the stages at the seat: `bodies` has one for each, replica after replica, in
/// ascending stage order. Throws InvalidArgument for another number of bodies, and for a program
/// that cannot train or has another number of ranks than the grid's pipelines have places.
TrainerParts assemble(const Program& compute,
                      std::vector<std::unique_ptr<StageBody>> bodies,
                      const TrainerOptions& options,
                      const Seat& seat);

/// As above with the model's stages, cut by the options, and the edges that the cut makes; copies
/// start equal. Throws InvalidArgument for another number of boundaries than the program has
/// stages, and for a program with edges of its own that are others.
TrainerParts assemble(const ModelSpec& model,
                      const Program& compute,
                      const TrainerOptions& options,
                      const Seat& seat);

}  // namespace millrace
