// See train_outputs.hpp.
#include "cli/train/outputs.hpp"

#include <utility>

#include "cli/files.hpp"
#include "millrace/scheduler/plan/cost_file.hpp"
#include "millrace/scheduler/plan/draw.hpp"
#include "millrace/scheduler/plan/graph.hpp"

namespace millrace::cli {

TrainOutputs::File::File(std::string option, const std::string& path)
    : option_(std::move(option)), path_(path) {
  if (wanted()) require_writable(option_, path_);
}

void TrainOutputs::File::write(const std::string& text) const {
  write_file(option_, path_, text);
}

TrainOutputs::TrainOutputs(const TrainFlags& flags)
    : trace_("--trace", flags.trace),
      svg_("--svg", flags.svg),
      costs_("--profile", flags.profile) {}

void TrainOutputs::write(const Program& program, const Timeline& last, const Cost& cost) const {
  if (trace_.wanted()) trace_.write(draw_trace(program, last));
  if (svg_.wanted()) svg_.write(draw_svg(program, last, cost, program.name + ", measured"));
  if (!costs_.wanted()) return;
  CostFile file;
  file.ranks = program.shape.ranks;
  file.stages = program.shape.stages();
  file.cost = cost;
  costs_.write(write_costs(file));
}

}  // namespace millrace::cli
