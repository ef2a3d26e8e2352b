// Shape and Program: a schedule as an object, from texts, arrays and files and back to them.
#include "millrace/scheduler/plan/program.hpp"

#include <pybind11/stl.h>
#include <tuple>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/stage_graph.hpp"
#include "millrace/scheduler/plan/text.hpp"
#include "module/arguments.hpp"
#include "module/arrays.hpp"
#include "module/bindings.hpp"

namespace millrace::python {

namespace {

constexpr const char* kAboutShape =
    "How many ranks, micro-batches and slices, and which rank holds which stage. `placement` is "
    "the rank of each stage, or a list of that for each of two replicas.";

Placement placement_of(const py::object& ranks) {
  std::vector<std::vector<int>> replicas;
  try {
    replicas = ranks.cast<std::vector<std::vector<int>>>();
  } catch (const py::cast_error&) {
    replicas = {counts_of(ranks, "placement")};
  }
  std::vector<std::vector<Rank>> rank_of;
  for (const std::vector<int>& stages : replicas) {
    rank_of.emplace_back();
    for (const int rank : stages) rank_of.back().emplace_back(rank);
  }
  return Placement(std::move(rank_of));
}

std::vector<std::vector<int>> ranks_of(const Placement& placement) {
  std::vector<std::vector<int>> replicas;
  for (int replica = 0; replica < placement.replicas(); ++replica) {
    replicas.emplace_back();
    for (int stage = 0; stage < placement.stages(); ++stage)
      replicas.back().push_back(placement.rank(Replica{replica}, Stage{stage}).value);
  }
  return replicas;
}

Shape shape_of(int ranks,
               int micro_batches,
               const py::object& placement,
               int slices,
               const py::object& replica_of,
               bool forward_only) {
  require(ranks >= 1, "ranks is " + std::to_string(ranks) + "; at least 1 is needed");
  Shape shape;
  shape.ranks = ranks;
  shape.micro_batches = micro_batches;
  shape.slices = slices;
  shape.placement = placement.is_none() ? Placement::straight(ranks) : placement_of(placement);
  for (const int replica : counts_of(replica_of, "replica_of"))
    shape.replica_of.emplace_back(replica);
  shape.forward_only = forward_only;
  require_inside_shape({shape, std::vector<std::vector<Action>>(static_cast<std::size_t>(ranks))});
  return shape;
}

std::vector<int> replicas_of(const Shape& shape) {
  std::vector<int> replicas;
  for (const Replica replica : shape.replica_of) replicas.push_back(replica.value);
  return replicas;
}

std::vector<std::tuple<int, int, int, int>> edges_of(const Shape& shape) {
  std::vector<std::tuple<int, int, int, int>> edges;
  for (const StageEdge& edge : shape.edges)
    edges.emplace_back(edge.from.value, edge.output, edge.to.value, edge.input);
  return edges;
}

std::vector<int> sinks_of(const Shape& shape) {
  std::vector<int> sinks;
  for (const Stage sink : shape.sinks) sinks.push_back(sink.value);
  return sinks;
}

SharedProgram connected(const Program& program,
                        const std::vector<std::tuple<int, int, int, int>>& edges,
                        const std::vector<int>& sinks) {
  auto result = std::make_shared<Program>(program);
  result->shape.edges.clear();
  for (const auto& [from, output, to, input] : edges)
    result->shape.edges.push_back({Stage{from}, output, Stage{to}, input});
  result->shape.sinks.clear();
  for (const int sink : sinks) result->shape.sinks.emplace_back(sink);
  static_cast<void>(StageGraph(result->shape));
  return result;
}

/// One rank: a text of actions, a list of such texts, or an array.
std::vector<Action> list_of(const py::handle& rank) {
  if (py::isinstance<py::str>(rank)) return parse_actions(rank.cast<std::string>());
  const bool texts = (py::isinstance<py::list>(rank) || py::isinstance<py::tuple>(rank)) &&
                     (py::len(rank) == 0 || py::isinstance<py::str>(rank[py::int_(0)]));
  if (!texts) return actions_of(py::reinterpret_borrow<py::object>(rank));
  std::string text;
  for (const py::handle action : rank) {
    require(py::isinstance<py::str>(action), "the actions of a rank are all texts, or none is");
    text += action.cast<std::string>() + ' ';
  }
  return parse_actions(text);
}

/// `rank` before the sentence of what is wrong with its actions.
std::vector<std::vector<Action>> lists_of(const py::object& ranks) {
  std::vector<std::vector<Action>> lists;
  for (const py::handle rank : py::iter(ranks)) try {
      lists.push_back(list_of(rank));
    } catch (const InvalidArgument& fault) {
      throw InvalidArgument("rank " + std::to_string(lists.size()) + ": " + fault.what());
    }
  return lists;
}

SharedProgram program_of(const py::object& ranks,
                         const std::optional<Shape>& shape,
                         std::string name) {
  auto program = std::make_shared<Program>();
  program->ranks = lists_of(ranks);
  program->shape = shape ? *shape : implied_shape(program->ranks);
  program->name = std::move(name);
  require_inside_shape(*program);
  return program;
}

/// The option that reads what the file has.
std::string cure_of(const Diagnostic& diagnostic) {
  if (diagnostic.cure == CsvCure::None) return "";
  return diagnostic.cure == CsvCure::OldLetters ? " (old_letters=True)" : " (skip_sharding=True)";
}

[[noreturn]] void refuse(const std::string& where, const std::vector<Diagnostic>& diagnostics) {
  std::string text;
  for (const Diagnostic& diagnostic : diagnostics)
    text += (text.empty() ? "" : "\n") + where + to_string(diagnostic) + cure_of(diagnostic);
  throw DataError(text);
}

SharedProgram read_csv_text(const std::string& text,
                            const CsvOptions& options,
                            const std::string& where) {
  ParsedProgram read = read_csv(text, options);
  if (!read.program) refuse(where, read.diagnostics);
  return std::make_shared<Program>(std::move(*read.program));
}

/// A cut of the layers is no part of a program; the object that was read keeps it.
constexpr const char* kBoundaries = "_boundaries";

py::object read_plan_text(const std::string& text, const std::string& where) {
  ParsedPlan read = read_plan(text);
  if (!read.plan) refuse(where, read.diagnostics);
  py::object program = py::cast(std::make_shared<Program>(std::move(read.plan->program)));
  program.attr(kBoundaries) = py::cast(read.plan->boundaries);
  return program;
}

std::vector<int> boundaries_of(const py::object& program) {
  if (!py::hasattr(program, kBoundaries)) return {};
  return program.attr(kBoundaries).cast<std::vector<int>>();
}

std::string plan_text(const py::object& self, const std::optional<std::vector<int>>& boundaries) {
  return write_plan({self.cast<const Program&>(), boundaries.value_or(boundaries_of(self))});
}

py::object read_file(const py::object& where, const CsvOptions& options) {
  const std::string path = path_of(where);
  const std::string text = text_of_file(path);
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && text[first] == '{') return read_plan_text(text, path + ":");
  SharedProgram program = read_csv_text(text, options, path + ":");
  program->name = path.substr(path.rfind('/') + 1);
  return py::cast(program);
}

py::list texts_of(const Program& program) {
  py::list ranks;
  for (const auto& actions : program.ranks) {
    py::list texts;
    for (const Action& action : actions) texts.append(to_string(action));
    ranks.append(texts);
  }
  return ranks;
}

std::string repr(const Program& program) {
  return "<millrace.Program '" + program.name + "': " + std::to_string(program.size()) +
         " actions on " + std::to_string(program.shape.ranks) + " ranks>";
}

void bind_shape(py::module_& module) {
  using namespace py::literals;
  py::class_<Shape>(module, "Shape", kAboutShape)
      .def(py::init(&shape_of),
           "ranks"_a,
           "micro_batches"_a,
           "placement"_a = py::none(),
           py::kw_only(),
           "slices"_a = 1,
           "replica_of"_a = py::none(),
           "forward_only"_a = false)
      .def_readonly("ranks", &Shape::ranks)
      .def_readonly("micro_batches", &Shape::micro_batches)
      .def_readonly("slices", &Shape::slices)
      .def_readonly("forward_only", &Shape::forward_only)
      .def_property_readonly("stages", &Shape::stages)
      .def_property_readonly("chunks", &Shape::chunks)
      .def_property_readonly("replicas", &Shape::replicas)
      .def_property_readonly("placement",
                             [](const Shape& self) { return ranks_of(self.placement); })
      .def_property_readonly("replica_of", &replicas_of)
      .def_property_readonly("edges", &edges_of)
      .def_property_readonly("sinks", &sinks_of)
      .def("__eq__", [](const Shape& self, const Shape& other) { return self == other; })
      .def("__eq__", [](const Shape&, const py::object&) { return false; });
}

void bind_texts(ProgramClass& program) {
  using namespace py::literals;
  program
      .def_static(
          "from_csv",
          [](const std::string& text, bool old_letters, bool skip_sharding) {
            return read_csv_text(
                text, {.old_letters = old_letters, .skip_sharding = skip_sharding}, "");
          },
          "text"_a,
          py::kw_only(),
          "old_letters"_a = false,
          "skip_sharding"_a = false,
          "Reads PyTorch's schedule CSV. Raises DataError with every fault.")
      .def_static(
          "from_plan",
          [](const std::string& text) { return read_plan_text(text, ""); },
          "text"_a,
          "Reads a plan file's text. Raises DataError.")
      .def_static(
          "read",
          [](const py::object& path, bool old_letters, bool skip_sharding) {
            return read_file(path, {.old_letters = old_letters, .skip_sharding = skip_sharding});
          },
          "path"_a,
          py::kw_only(),
          "old_letters"_a = false,
          "skip_sharding"_a = false,
          "Reads a plan file or a CSV file, whichever it is.")
      .def("to_csv",
           &write_csv,
           "PyTorch's schedule CSV, of the actions as they stand. Raises InvalidArgument for what "
           "that cannot say.")
      .def(
          "to_pytorch_csv",
          [](const Program& self, const std::string& engine) {
            return write_engine_csv(self, parse_csv_engine(engine)).csv;
          },
          py::kw_only(),
          "for_"_a = "torch",
          "The passes as compute-only CSV for 'torch', 'torchtitan' or 'automodel', which insert "
          "messages by themselves. Raises InvalidArgument, with a schedule that fits, where the "
          "engine cannot run it or would compute wrong gradients.")
      .def("to_plan",
           &plan_text,
           py::kw_only(),
           "boundaries"_a = py::none(),
           "A plan file's text, which `millrace train --plan` runs. `boundaries`: the first layer "
           "of every stage but the first; unless given, those that the program was read with.")
      .def_property_readonly("boundaries",
                             &boundaries_of,
                             "Of the plan file that it was read from, the first layer of every "
                             "stage but the first; of a program made otherwise none.")
      .def("connected",
           &connected,
           "edges"_a,
           "sinks"_a = std::vector<int>(),
           "The same program over stages that are no chain: an edge (from, output, to, input) "
           "leads an "
           "output of a stage to an input of a later one. `sinks`: the stages that have a loss, "
           "ascending; by default the last one.")
      .def("texts", &texts_of, "The actions of every rank as texts, \"0F3\".");
}

}  // namespace

ProgramClass bind_program(py::module_& module) {
  using namespace py::literals;
  bind_shape(module);
  module.attr("action_dtype") = action_dtype();
  ProgramClass program(module,
                       "Program",
                       "A schedule: one ordered list of actions per rank, and the shape they live "
                       "in. Immutable.",
                       py::dynamic_attr());
  program
      .def(py::init(&program_of),
           "ranks"_a,
           "shape"_a = py::none(),
           "name"_a = "program",
           "One entry per rank: a text (\"0F0 0F1+0B0\"), a list of texts, or an array of "
           "action_dtype. Without a shape the actions imply it.")
      .def_readonly("shape", &Program::shape)
      .def_readonly("name", &Program::name)
      .def_property_readonly(
          "ranks",
          [](const Program& self) {
            py::list ranks;
            for (const auto& actions : self.ranks) ranks.append(to_array(actions));
            return ranks;
          },
          "The actions of every rank, as arrays of action_dtype (copies).")
      .def_property_readonly("plan_hash", &plan_hash, "xxh3-128 of shape and actions.")
      .def_property_readonly(
          "recomputed_stages",
          [](const Program& self) { return describe_recompute(self); },
          "Which stages run their forward again: \"none\", \"all\" or \"stages:0,2-4\", with "
          "\" in part\" if some of their micro-batches do not.")
      .def("__len__", &Program::size)
      .def("__repr__", &repr)
      .def("__eq__", [](const Program& self, const Program& other) { return self == other; })
      .def("__eq__", [](const Program&, const py::object&) { return false; })
      .def("__hash__", [](const Program& self) { return py::hash(py::str(plan_hash(self))); });
  bind_texts(program);
  return program;
}

}  // namespace millrace::python
