// This process's place in a job of several, and the trainer that it makes there: the seam between
// `millrace launch` and whatever trains from Python: Trainer and the passes of millrace.torch.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <pybind11/pybind11.h>
#include <string>

#include "millrace/training/trainer.hpp"
#include "millrace/transport/launch.hpp"
#include "millrace/transport/listener.hpp"

namespace millrace::python {

namespace py = pybind11;

/// millrace.Launched: one rank of a job; where nobody launched this process, the only one.
/// Trainers made here hold on to it, because their messages go through it.
class Launched {
 public:
  explicit Launched(JoinedRank rank) : rank_(std::make_unique<JoinedRank>(std::move(rank))) {}

  [[nodiscard]] int rank() const { return rank_->rank().value; }
  [[nodiscard]] int world() const { return rank_->world(); }
  [[nodiscard]] const std::string& log_directory() const { return rank_->log_directory(); }
  [[nodiscard]] int attempt() const { return rank_->attempt(); }
  [[nodiscard]] JoinedRank& joined() { return *rank_; }

 private:
  std::unique_ptr<JoinedRank> rank_;
};

/// Meets the other ranks, or finds that there are none, at the place that the environment says;
/// blocks, without the interpreter's lock. Once per process: see millrace/launch.py. A build
/// without ZeroMQ throws Error where there are others.
/// An action may take `least` before its rank counts as hung, unless the environment sets more.
[[nodiscard]] JoinedRank joined(const HelloFields& fields, std::chrono::milliseconds least);

/// The only rank of a world of one.
[[nodiscard]] JoinedRank alone();

/// This process's place, as millrace/launch.py finds it at the first call. Needs the lock.
[[nodiscard]] std::shared_ptr<Launched> launched();

/// Which copy of which stage, of those that this process hosts.
struct Place {
  Replica replica;
  Stage stage;
};

/// What this process hosts of a program, replica after replica: all of it where it is alone.
[[nodiscard]] std::vector<Place> places_of(const Launched& self, const Shape& shape);

using BodyOf = std::function<std::unique_ptr<StageBody>(const Place&)>;

/// A trainer of this process's part of `program`: `body_of` is asked for what lives here and
/// nothing else. One process alone runs all ranks by options.executor; one of several runs its own,
/// and throws Mismatch, as all of them do, when plan or settings differ. `self` must outlive it.
/// Neither needs the lock; `body_of` is called on this thread.
[[nodiscard]] std::unique_ptr<Trainer> trainer_of(Launched& self,
                                                  const Program& program,
                                                  const BodyOf& body_of,
                                                  const TrainerOptions& options);

}  // namespace millrace::python
