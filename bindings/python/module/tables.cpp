// Many schedules at once: side by side, and as a table over counts, costs and limits.
#include <algorithm>
#include <pybind11/stl.h>
#include <thread>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/sweep.hpp"
#include "module/arguments.hpp"
#include "module/bindings.hpp"
#include "module/interruptible.hpp"

namespace millrace::python {

namespace {

using namespace py::literals;

/// A schedule of a comparison: a name of the catalogue, or a program.
struct Contender {
  std::string name;
  const ScheduleEntry* entry = nullptr;
  SharedProgram program = {};
};

Contender contender_of(const py::handle& said) {
  if (py::isinstance<Program>(said)) {
    auto program = said.cast<SharedProgram>();
    return {program->name, nullptr, program};
  }
  require(py::isinstance<py::str>(said), "a schedule to compare is a name or a millrace.Program");
  const std::string name = said.cast<std::string>();
  return {name, &find_schedule(name), {}};
}

/// Of the parameters that are set, those that the schedule does not take.
std::vector<std::string> untaken(const Contender& contender, const ScheduleOptions& options) {
  std::vector<std::string> names;
  for (const ScheduleParameter& parameter : kScheduleParameters) {
    const bool counts = std::holds_alternative<int ScheduleOptions::*>(parameter.field);
    if (counts || !value_of(options, parameter)) continue;
    if (contender.entry == nullptr || (!contender.entry->takes(parameter.name) &&
                                       !agrees(*contender.entry, options, parameter.name)))
      names.emplace_back(parameter.name);
  }
  return names;
}

/// Throws InvalidArgument for an option that no schedule of the comparison takes.
void require_taken(const std::vector<Contender>& contenders, const ScheduleOptions& options) {
  if (contenders.empty()) return;
  for (const std::string& name : untaken(contenders.front(), options)) {
    const bool taken = std::any_of(contenders.begin(), contenders.end(), [&](const auto& other) {
      const std::vector<std::string> left_out = untaken(other, options);
      return std::find(left_out.begin(), left_out.end(), name) == left_out.end();
    });
    require(taken, named(name) + " was given, but none of the schedules takes it");
  }
}

SharedProgram program_of(const Contender& contender, ScheduleOptions options, const Costs& costs) {
  if (contender.entry == nullptr) return contender.program;
  for (const ScheduleParameter& parameter : kScheduleParameters)
    if (!contender.entry->takes(parameter.name)) clear_value(options, parameter);
  return interruptible([&](const Stop& stop) {
    options.stop = stop;
    return std::make_shared<Program>(generate(contender.name, options, costs));
  });
}

py::object compared(const Contender& contender,
                    const ScheduleOptions& options,
                    const Costs& costs) {
  const py::tuple left_out = py::tuple(py::cast(untaken(contender, options)));
  try {
    const SharedProgram program = program_of(contender, options, costs);
    const Graph graph(*program);
    const Simulated run = simulated(graph, costs);
    return made("Compared",
                "name"_a = program->name,
                "program"_a = program,
                "report"_a = report_object(graph, run),
                "violations"_a = py::tuple(violation_objects(verify(graph), *program)),
                "accumulation"_a = accumulation_object(*program),
                "left_out"_a = left_out,
                "refused"_a = "");
  } catch (const InvalidArgument& refusal) {
    return made("Compared",
                "name"_a = contender.name,
                "program"_a = py::none(),
                "report"_a = py::none(),
                "violations"_a = py::tuple(),
                "accumulation"_a = py::none(),
                "left_out"_a = left_out,
                "refused"_a = refusal.what());
  }
}

py::list compare(const py::object& schedules,
                 int ranks,
                 int micro_batches,
                 const py::object& costs,
                 const py::kwargs& members) {
  const ScheduleOptions options = options_of(ranks, micro_batches, members);
  const Costs given = costs_of(costs);
  std::vector<Contender> contenders;
  for (const py::handle said : py::iter(schedules)) contenders.push_back(contender_of(said));
  require_taken(contenders, options);
  py::list rows;
  for (const Contender& contender : contenders) {
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    rows.append(compared(contender, options, given));
  }
  return rows;
}

Costs of_sweep(Costs costs) {
  require(costs.data_parallel == 1,
          "data_parallel is " + std::to_string(costs.data_parallel) +
              " in the costs; a sweep takes it next to them, sweep(..., data_parallel=" +
              std::to_string(costs.data_parallel) + ", costs=...)");
  return costs;
}

/// One set of costs, or a list of them; (F, I, W) is a set too.
std::vector<Costs> swept_costs(const py::object& said) {
  const auto one = [](const py::handle& item) {
    auto object = py::reinterpret_borrow<py::object>(item);
    if (!py::isinstance<py::tuple>(item)) return of_sweep(costs_of(object));
    const std::vector<double> times = numbers_of(object, "costs");
    require(times.size() == 3, "costs hold a tuple; expected the times (F, I, W)");
    return Costs{.forward = {times[0]}, .input = {times[1]}, .weight = {times[2]}};
  };
  if (!py::isinstance<py::list>(said)) return {one(said)};
  std::vector<Costs> all;
  for (const py::handle item : said) all.push_back(one(item));
  return all;
}

/// None: no limit; a number; or "2p", times p x memory_forward.
std::optional<MemoryLimit> limit_of(const py::handle& said) {
  if (said.is_none()) return std::nullopt;
  return parse_memory_limit(std::string(py::str(said)));
}

std::vector<std::optional<MemoryLimit>> limits_of(const py::object& said) {
  if (!py::isinstance<py::list>(said) && !py::isinstance<py::tuple>(said)) return {limit_of(said)};
  std::vector<std::optional<MemoryLimit>> limits;
  for (const py::handle item : said) limits.push_back(limit_of(item));
  return limits;
}

/// A program has counts of its own, which a sweep would have to leave as they are.
std::string name_of(const py::handle& said) {
  require(!py::isinstance<Program>(said), [&] {
    return "sweep takes names of schedules, got the program '" + said.cast<SharedProgram>()->name +
           "', which has counts of its own; compare([...]) sets programs side by side";
  });
  require(py::isinstance<py::str>(said), [&] {
    return "sweep takes names of schedules, got a " +
           std::string(py::str(py::type::handle_of(said).attr("__name__")));
  });
  return said.cast<std::string>();
}

std::vector<std::string> names_of(const py::object& said) {
  if (!py::isinstance<py::str>(said)) {
    std::vector<std::string> names;
    if (!py::hasattr(said, "__iter__")) return {name_of(said)};
    for (const py::handle item : py::iter(said)) names.push_back(name_of(item));
    return names;
  }
  const std::string name = said.cast<std::string>();
  if (name != "all") return {name};
  std::vector<std::string> names;
  for (const ScheduleEntry& entry : schedules()) names.emplace_back(entry.name);
  return names;
}

/// The metrics of a row, or None where it has none.
py::dict metrics_of(const SweepRow& row) {
  using Field = ResultField<Report>;
  py::dict metrics;
  for (const Field& field : result_fields<Report>())
    if (field.is_in(Field::Sweep))
      metrics[py::str(std::string(field.name))] =
          row.report ? py::cast(field.of(*row.report)) : py::object(py::none());
  for (const auto& [name, holds] : {std::pair("same_bits", row.same_bits), {"valid", row.valid}})
    metrics[name] = row.report ? py::object(py::bool_(holds)) : py::object(py::none());
  return metrics;
}

py::object row_object(const SweepRow& row) {
  const SweepPoint& point = row.point;
  const MeanStage mean = mean_stage(point.costs);
  return made("SweepRow",
              "schedule"_a = point.schedule,
              "ranks"_a = point.ranks,
              "micro_batches"_a = point.micro_batches,
              "chunks"_a = point.chunks.value_or(0),
              "slices"_a = point.slices.value_or(0),
              "data_parallel"_a = point.costs.data_parallel,
              "accumulate"_a = point.costs.accumulate,
              "forward"_a = mean.forward,
              "input"_a = mean.input,
              "weight"_a = mean.weight,
              "latency"_a = mean.latency,
              "bandwidth"_a = mean.bandwidth,
              "gradient_bytes"_a = mean.gradient_bytes,
              "costs"_a = point.costs.file_name,
              "memory_limit"_a = point.memory_limit,
              "reason"_a = row.reason,
              **metrics_of(row));
}

int threads_of(std::optional<int> threads) {
  return threads ? *threads : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

py::object sweep_table(const py::object& schedules,
                       const py::object& ranks,
                       const py::object& micro_batches,
                       const py::object& chunks,
                       const py::object& slices,
                       const py::object& data_parallel,
                       const py::object& costs,
                       const py::object& memory_limits,
                       std::optional<int> threads) {
  SweepSpace space;
  space.schedules = names_of(schedules);
  space.ranks = counts_of(ranks, "ranks");
  space.micro_batches = counts_of(micro_batches, "micro_batches");
  space.chunks = counts_of(chunks, "chunks");
  space.slices = counts_of(slices, "slices");
  space.data_parallel = counts_of(data_parallel, "data_parallel");
  space.costs = swept_costs(costs);
  space.limits = limits_of(memory_limits);
  const std::vector<SweepPoint> points = sweep_points(space);
  std::vector<SweepRow> rows;
  interruptible([&](const Stop& stop) {
    sweep(
        points, threads_of(threads), [&](const SweepRow& row) { rows.push_back(row); }, stop);
    return true;
  });
  std::string csv = sweep_csv_head();
  py::list objects;
  for (const SweepRow& row : rows) {
    objects.append(row_object(row));
    csv += sweep_csv(row);
  }
  return made("SweepTable", objects, csv);
}

}  // namespace

void bind_tables(py::module_& module) {
  module.def("compare",
             &compare,
             "schedules"_a,
             "ranks"_a = 4,
             "micro_batches"_a = 8,
             py::kw_only(),
             "costs"_a = py::none(),
             "Schedules side by side: names of the catalogue, generated with the keywords of "
             "`generate` that each takes, and Programs as they are. One that has no meaning says "
             "why in `refused`.");
  module.def("sweep",
             &sweep_table,
             "schedules"_a,
             "ranks"_a = 4,
             "micro_batches"_a = 8,
             py::kw_only(),
             "chunks"_a = py::none(),
             "slices"_a = py::none(),
             "data_parallel"_a = 1,
             "costs"_a = py::none(),
             "memory_limits"_a = py::none(),
             "threads"_a = py::none(),
             "A table of schedules ('all', a name or a list) by counts, costs and limits; every "
             "argument may be a list. `costs` hold (F, I, W), Costs, dicts or cost files; "
             "`memory_limits` numbers, None or '2p', times p x memory_forward. On all processors "
             "unless `threads` says less. Ctrl-C ends it.");
}

}  // namespace millrace::python
