// What is true of a program: verify, simulate, capacities, the order of accumulation.
#include <pybind11/stl.h>

#include "millrace/core/error.hpp"
#include "module/arguments.hpp"
#include "module/arrays.hpp"
#include "module/bindings.hpp"

namespace millrace::python {

namespace {

using namespace py::literals;

Transport transport_of(const py::object& said) {
  if (py::isinstance<py::int_>(said) && !py::isinstance<py::bool_>(said))
    return Transport::bounded(said.cast<int>());
  const std::string text = py::str(said);
  if (text == "fifo") return Transport::fifo();
  require(
      text == "unbounded" || text == "rendezvous",
      "transport is '" + text +
          "'; known are 'unbounded', 'rendezvous', 'fifo' and a number of messages per channel");
  return text == "rendezvous" ? Transport::rendezvous() : Transport::unbounded();
}

/// One value for all ranks, or one per rank.
std::vector<double> limits_of(const py::object& value, int ranks) {
  std::vector<double> limits = numbers_of(value, "memory_limit");
  require(limits.size() <= 1 || limits.size() == static_cast<std::size_t>(ranks), [&] {
    return "memory_limit has " + std::to_string(limits.size()) +
           " values; allowed are 1 or one per rank, " + std::to_string(ranks);
  });
  return limits;
}

py::list verified(const Program& program,
                  const py::object& transport,
                  const py::object& memory_limit,
                  const py::object& costs,
                  const py::object& loss_weights) {
  VerifyOptions checks;
  checks.transport = transport_of(transport);
  checks.memory_limit = limits_of(memory_limit, program.shape.ranks);
  checks.loss_weights = numbers_of(loss_weights, "loss_weights");
  const Costs given = costs_of(costs);
  if (!checks.memory_limit.empty()) {
    require_memory(given);
    checks.cost = cost_of(program.shape, given);
  }
  std::vector<Violation> violations;
  {
    const py::gil_scoped_release unlocked;
    violations = verify(program, checks);
  }
  return violation_objects(violations, program);
}

py::tuple rank_objects(const Report& report) {
  py::list ranks;
  for (const RankReport& rank : report.ranks)
    ranks.append(made("RankReport",
                      "idle"_a = made("Idle", **fields_of(rank.idle)),
                      "idle_overlapped"_a = made("Idle", **fields_of(rank.idle_overlapped)),
                      **fields_of(rank)));
  return py::tuple(ranks);
}

py::tuple places_of(const Graph& graph, const std::vector<Node>& nodes) {
  py::list places;
  for (const Node node : nodes)
    places.append(py::make_tuple(graph.rank(node).value, graph.position(node)));
  return py::tuple(places);
}

py::object simulate_program(const Program& program, const py::object& costs) {
  const Costs given = costs_of(costs);
  const Graph graph(program);
  return report_object(graph, simulated(graph, given));
}

py::object iterations_of(const Program& program, const py::object& costs, int steps, bool barrier) {
  const Cost cost = cost_of(program.shape, costs_of(costs));
  const Iterations runs =
      simulate_iterations(Graph(program), cost, steps, barrier ? Barrier::Yes : Barrier::No);
  return made(
      "Iterations", "ends"_a = py::tuple(py::cast(runs.ends)), "per_step"_a = runs.per_step);
}

py::object jitter_of(
    const Program& program, const py::object& costs, double amount, int runs, std::uint64_t seed) {
  const Cost cost = cost_of(program.shape, costs_of(costs));
  const Spread spread =
      simulate_jitter(Graph(program), cost, {.amount = amount, .runs = runs, .seed = seed});
  return made("Spread", **fields_of(spread));
}

py::list capacities_of(const Program& program) {
  py::list channels;
  for (const ChannelCapacity& channel : channel_capacities(program))
    channels.append(made("ChannelCapacity",
                         "source"_a = channel.source.value,
                         "destination"_a = channel.destination.value,
                         "direction"_a = channel.direction == Direction::Forward ? "F" : "B",
                         "minimal"_a = channel.minimal,
                         "sufficient"_a = channel.sufficient));
  return channels;
}

}  // namespace

Simulated simulated(const Graph& graph, const Costs& costs) {
  Cost cost = cost_of(graph.program().shape, costs);
  const py::gil_scoped_release unlocked;
  auto run = simulate(graph, cost);
  if (const auto* stuck = std::get_if<Deadlock>(&run))
    throw InvalidArgument("the schedule cannot proceed: " + stuck->message());
  return {std::move(cost), std::get<Timeline>(std::move(run))};
}

py::object report_object(const Graph& graph, const Simulated& run) {
  Report figures;
  std::vector<Node> chain;
  std::vector<std::vector<MemoryStep>> memory;
  {
    const py::gil_scoped_release unlocked;
    figures = report(graph, run.cost, run.timeline);
    chain = critical_path(graph, run.cost, run.timeline);
    memory = memory_over_time(graph, run.cost, run.timeline);
  }
  return made("Report",
              "sums"_a = made("Sums", **fields_of(figures.sums)),
              "ranks"_a = rank_objects(figures),
              "timeline"_a = to_arrays(run.timeline),
              "memory"_a = to_arrays(memory),
              "critical_chain"_a = places_of(graph, chain),
              **fields_of(figures));
}

py::list violation_objects(const std::vector<Violation>& violations, const Program& program) {
  const py::object rule = py::module_::import("millrace.results").attr("Rule");
  py::list objects;
  for (const Violation& violation : violations) {
    py::list others;
    for (const ActionPlace& place : violation.others)
      others.append(py::make_tuple(place.rank.value, place.position));
    const std::size_t rank = violation.rank.index();
    const bool there =
        rank < program.ranks.size() && violation.position < program.ranks[rank].size();
    objects.append(
        made("Violation",
             "rule"_a = rule(static_cast<int>(violation.rule)),
             "rank"_a = violation.rank.value,
             "position"_a = violation.position,
             "action"_a = there ? to_string(program.ranks[rank][violation.position]) : "",
             "message"_a = violation.message,
             "others"_a = py::tuple(others)));
  }
  return objects;
}

py::object accumulation_object(const Program& program) {
  const Accumulation order = accumulation(program);
  return made("Accumulation",
              "ascending"_a = order.ascending,
              "broken"_a = order.broken ? py::cast(order.broken->value) : py::object(py::none()),
              "message"_a = order.message);
}

void bind_checks(ProgramClass& program) {
  program
      .def("verify",
           &verified,
           py::kw_only(),
           "transport"_a = "unbounded",
           "memory_limit"_a = py::none(),
           "costs"_a = py::none(),
           "loss_weights"_a = py::none(),
           "Every violation of the rules; an empty list means that the schedule is correct and "
           "cannot hang on the transport: 'unbounded', 'rendezvous', 'fifo' (what a rank sends "
           "another "
           "arrives in that order, without tags) or a number of messages per channel.")
      .def("simulate",
           &simulate_program,
           "costs"_a = py::none(),
           "Runs every action as early as its rank and what it needs allow. Raises "
           "InvalidArgument, with the cycle, when the schedule cannot proceed.")
      .def("simulate_iterations",
           &iterations_of,
           "costs"_a = py::none(),
           py::kw_only(),
           "steps"_a,
           "barrier"_a = false,
           "Several steps in a row.")
      .def("simulate_jitter",
           &jitter_of,
           "costs"_a = py::none(),
           py::kw_only(),
           "amount"_a = 0.1,
           "runs"_a = 100,
           "seed"_a = 1,
           "Makespans when every time varies by up to `amount` of it.")
      .def("accumulation",
           &accumulation_object,
           "Whether weight gradients add up in the order of one thread: the same bits.")
      .def("channel_capacities", &capacities_of, "How much room every channel needs.");
}

}  // namespace millrace::python
