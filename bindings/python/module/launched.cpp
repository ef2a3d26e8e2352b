// A process's place in a job; see launched.hpp.
#include "module/launched.hpp"

#include <pybind11/stl.h>

#include "millrace/core/error.hpp"
#include "millrace/training/ranks.hpp"
#include "millrace/transport/endpoint.hpp"
#include "millrace/transport/in_process.hpp"
#include "millrace/transport/zeromq.hpp"
#include "module/bindings.hpp"

namespace millrace::python {

namespace {

using namespace py::literals;

/// What ranks compare when they meet: how millrace was built, then what the program adds.
std::shared_ptr<Launched> meet_all(const std::vector<std::pair<std::string, std::string>>& own,
                                   double least_seconds) {
  const py::gil_scoped_release unlocked;
  HelloFields fields = build_fields();
  fields.insert(fields.end(), own.begin(), own.end());
  const std::chrono::milliseconds least(static_cast<std::int64_t>(least_seconds * 1000));
  return std::make_shared<Launched>(joined(fields, least));
}

/// A rank that has left is done: the failure of another is not its own.
std::string leave(Launched& self, double seconds) {
  const py::gil_scoped_release unlocked;
  try {
    self.joined().leave(std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000)));
  } catch (const Cancelled& failure) {
    return failure.what();
  } catch (const PeerLost& failure) {
    return failure.what();
  }
  return {};
}

}  // namespace

JoinedRank alone() {
  return {InProcessHub(1).endpoint(Rank{0}), {}};
}

std::shared_ptr<Launched> launched() {
  return py::module_::import("millrace.launch").attr("place")().cast<std::shared_ptr<Launched>>();
}

std::vector<Place> places_of(const Launched& self, const Shape& shape) {
  std::vector<Place> places;
  for (int replica = 0; replica < shape.replicas(); ++replica)
    for (int stage = 0; stage < shape.stages(); ++stage) {
      const Place place{Replica{replica}, Stage{stage}};
      if (self.world() == 1 || shape.rank(place.replica, place.stage).value == self.rank())
        places.push_back(place);
    }
  return places;
}

std::unique_ptr<Trainer> trainer_of(Launched& self,
                                    const Program& program,
                                    const BodyOf& body_of,
                                    const TrainerOptions& options) {
  require(self.world() == 1 || self.world() == program.shape.ranks, [&] {
    return "the program has " + std::to_string(program.shape.ranks) + " ranks, but " +
           std::to_string(self.world()) +
           " processes were launched; give generate(ranks=...) and launch -n the same number";
  });
  Bodies bodies;
  for (const Place& place : places_of(self, program.shape)) bodies.push_back(body_of(place));
  if (self.world() == 1)
    return std::make_unique<Trainer>(Plan{program}, std::move(bodies), options);
  JoinedRank& rank = self.joined();
  return std::make_unique<Trainer>(
      rank_parts({program}, std::move(bodies), options, rank.endpoint(), rank.group()));
}

void bind_launched(py::module_& module) {
  py::class_<Launched, std::shared_ptr<Launched>>(
      module, "Launched", "This process's place among those of `millrace launch`.")
      .def_property_readonly("rank", &Launched::rank, "From 0; 0 where nobody launched it.")
      .def_property_readonly("world", &Launched::world, "Processes in all.")
      .def_property_readonly("log_directory",
                             &Launched::log_directory,
                             "Of `millrace launch --log-dir`, for what a rank writes beside its "
                             "log; empty where there is none.")
      .def_property_readonly("attempt",
                             &Launched::attempt,
                             "How often `millrace launch --restarts` has started this job again; a "
                             "program that saves continues from its newest checkpoint if not 0.")
      .def("leave",
           &leave,
           "seconds"_a = 30.0,
           "Leaves and waits until the others have all that was sent; the end of a program "
           "does it by itself. Gives what another rank failed of meanwhile, which ends with a code "
           "of its own; empty where all is well.");
  module.def(
      "alone",
      [] { return std::make_shared<Launched>(alone()); },
      "The place of a process that meets nobody.");
#ifdef MILLRACE_ZEROMQ
  module.def(
      "make_keys",
      [](const std::string& folder, int ranks) { (void)write_key_files(folder, ranks); },
      "folder"_a,
      "ranks"_a,
      "Writes folder/keys-R for each rank of a job over tcp.");
#endif
  module.def("meet", &meet_all, "fields"_a, "action_timeout"_a = 0.0, "See millrace/launch.py.");
}

}  // namespace millrace::python
