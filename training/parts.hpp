// How a trainer gets its parts when it makes them itself: one way for all stages in this process
// and for those of one rank.
#pragma once

#include <memory>
#include <vector>

#include "millrace/scheduler/plan/program.hpp"
#include "millrace/stages/models.hpp"
#include "millrace/training/trainer.hpp"
#include "millrace/transport/endpoint.hpp"

namespace millrace {

/// Which part of a training this process is: with an endpoint, its rank; else all ranks.
struct Seat {
  Endpoint* endpoint = nullptr;
  ProcessGroup* group = nullptr;
};

/// The compute-only program that the options ask for.
Program training_program(const TrainerOptions& options);

/// Executors over the stages at the seat: `bodies` has one for each, replica after replica, in
/// ascending stage order. Throws InvalidArgument for another number of bodies, and for a program
/// that cannot train or has not as many ranks as there are processes.
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
