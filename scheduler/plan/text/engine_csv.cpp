// Checks the rules of PyTorch's pipeline engine, then writes its compute-only CSV and the lines
// that use it. Sources: torch 2.13, torch/distributed/pipelining/schedules.py; torchtitan 0.3.0,
// distributed/pipeline_parallel.py; NeMo Automodel, components/distributed/pipelining.
#include <algorithm>
#include <fmt/format.h>
#include <span>

#include "core/names.hpp"
#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/text.hpp"
#include "millrace/scheduler/plan/verify.hpp"
#include "plan/text/action_text.hpp"

namespace millrace {

namespace {

constexpr Names<CsvEngine, 3> kEngines{"engine",
                                       {{{"torch", CsvEngine::Torch},
                                         {"torchtitan", CsvEngine::Torchtitan},
                                         {"automodel", CsvEngine::Automodel}}}};

/// The schedule of torch.distributed.pipelining whose stages lie as those of the shape; empty when
/// none do.
std::string_view torch_name(const Shape& shape) {
  if (shape.placement == Placement::straight(shape.ranks)) return "1F1B";
  if (shape.placement == Placement::vee(shape.ranks)) return "ZBVZeroBubble";
  const int chunks = std::max(1, shape.chunks());
  return shape.placement == Placement::loop(shape.ranks, chunks) ? "PipelineScheduleMulti" : "";
}

/// A schedule of the catalogue that runs in every engine, with the ranks and micro-batches of the
/// shape and its stages where that is possible.
std::string_view nearest(const Shape& shape) {
  if (shape.replicas() > 1) return shape.micro_batches >= 2 * shape.ranks ? "dualpipe-v" : "zb-v";
  if (shape.stages() <= shape.ranks) return "1f1b";
  return shape.placement == Placement::vee(shape.ranks) ? "zb-v" : "interleaved";
}

class Rules {
 public:
  Rules(const Program& program, CsvEngine engine) : program_(program), engine_(engine) {}

  /// The passes. Throws InvalidArgument for the first rule that is broken.
  [[nodiscard]] Program check() const {
    const Shape& shape = program_.shape;
    require_rule(shape.replicas() == 1, "PyTorch runs one replica of the model");
    require_rule(shape.slices == 1, "PyTorch runs whole micro-batches, no slices");
    require_rule(!shape.forward_only, "PyTorch expects a backward pass for every forward pass");
    require(shape.edges.empty() && shape.ties.empty(),
            program_.name +
                ": PyTorch runs a chain of stages without tied weights; nearest: the "
                "same schedule of a model without skip edges and ties");
    for (const auto& list : program_.ranks)
      require(std::ranges::find(list, Op::Recompute, &Action::op) == list.end(),
              program_.name +
                  ": PyTorch has no action R; nearest: the same schedule without "
                  "recompute, and torch.utils.checkpoint in the model");
    Program passes = compute_only(program_);
    for (const Violation& violation : verify(passes))
      require_rule(false, "PyTorch runs valid schedules, but " + violation.message);
    static_cast<void>(insert_messages(passes));  // throws where pairs wait for each other
    require_known_pairs(passes);
    require_ascending_losses(passes);
    require_placement();
    return passes;
  }

 private:
  void require_rule(bool holds, const std::string& rule) const {
    require(holds, [&] {
      return program_.name + ": " + rule + "; nearest: " + nearest(program_.shape).data();
    });
  }

  void require_known_pairs(const Program& passes) const {
    for (const auto& list : passes.ranks)
      for (std::size_t i = 0; i < list.size(); ++i)
        require_rule(!list[i].with_next || is_csv_pair(list[i], list[i + 1]),
                     "PyTorch overlaps one F with one B or I, no other passes");
  }

  /// PyTorch appends each loss to a list, and looks it up by micro-batch.
  void require_ascending_losses(const Program& passes) const {
    const Stage last{passes.shape.stages() - 1};
    MicroBatch due{0};
    for (const Action& action : passes.on(passes.shape.placement.rank(last))) {
      if (action.op != Op::Forward || action.stage != last) continue;
      require_rule(action.micro_batch == due,
                   fmt::format("PyTorch needs the forward passes of the last stage in ascending "
                               "order, else gradients are wrong; here {} comes before {}F{}",
                               to_string(action),
                               last.value,
                               due.value));
      ++due.value;
    }
  }

  void require_placement() const {
    const std::string_view name = torch_name(program_.shape);
    require_rule(engine_ == CsvEngine::Torch || !name.empty(),
                 std::string(kEngines.of(engine_)) +
                     " has one stage per rank, a loop of stages (stage s on rank s mod p), or a V "
                     "of two stages per rank");
  }

  const Program& program_;
  CsvEngine engine_;
};

std::string torch_settings(const Shape& shape, std::string_view path) {
  std::string text = fmt::format(
      "# torch 2.6 or later, {} ranks; in Python millrace.torch.distributed.schedule does this\n"
      "schedule = _PipelineScheduleRuntime(stages, n_microbatches={}, loss_fn=loss_fn)\n"
      "schedule._load_csv(\"{}\")\n",
      shape.ranks,
      shape.micro_batches,
      path);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    text += fmt::format("# stages of rank {}:", rank);
    for (int stage = 0; stage < shape.stages(); ++stage)
      if (shape.placement.rank(Stage{stage}).value == rank) text += fmt::format(" {}", stage);
    text += '\n';
  }
  return text;
}

/// Of a flag of torchtitan.
constexpr std::string_view kFlag = "--";

std::string settings_of(const Shape& shape, CsvEngine engine, std::string_view path) {
  if (engine == CsvEngine::Torch) return torch_settings(shape, path);
  const bool titan = engine == CsvEngine::Torchtitan;
  constexpr std::string_view titan_lines =
      "{4}parallelism.pipeline_parallel_degree {0}\n"
      "{4}parallelism.pipeline_parallel_schedule {1}\n"
      "{4}parallelism.pipeline_parallel_schedule_csv {2}\n"
      "# {4}training.local_batch_size is {3} x {4}parallelism.pipeline_parallel_microbatch_size\n";
  constexpr std::string_view automodel_lines =
      "distributed:\n"
      "  pp_size: {0}\n"
      "  pipeline:\n"
      "    pp_schedule: {1}\n"
      "    pp_schedule_csv: {2}\n"
      "    # the local batch size is {3} x pp_microbatch_size\n";
  std::string text = fmt::format(fmt::runtime(titan ? titan_lines : automodel_lines),
                                 shape.ranks,
                                 torch_name(shape),
                                 path,
                                 shape.micro_batches,
                                 kFlag);
  if (shape.chunks() > 2)
    text +=
        fmt::format("{}{} makes {} stages\n",
                    titan ? "# " : "    # ",
                    titan ? fmt::format("{}parallelism.pipeline_parallel_layers_per_stage", kFlag)
                          : "layers_per_stage",
                    shape.stages());
  return text;
}

}  // namespace

CsvEngine parse_csv_engine(std::string_view name) {
  return kEngines.value(name);
}

EngineCsv write_engine_csv(const Program& program, CsvEngine engine, std::string_view path) {
  return {write_csv(Rules(program, engine).check()), settings_of(program.shape, engine, path)};
}

}  // namespace millrace
