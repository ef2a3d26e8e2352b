// See train_outputs.hpp.
#include "cli/train_outputs.hpp"

#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/cost_file.hpp"
#include "millrace/scheduler/plan/draw.hpp"
#include "millrace/scheduler/plan/graph.hpp"

namespace millrace::cli {

TrainOutputs::File::File(std::string option, const std::string& path)
    : option_(std::move(option)), path_(path) {
  if (path_.empty()) return;
  stream_.open(path_, std::ios::binary);
  require(stream_.good(), option_ + " " + path_ + ": the file cannot be written");
}

void TrainOutputs::File::write(const std::string& text) {
  stream_ << text << std::flush;
  if (!stream_.good()) throw Error(option_ + " " + path_ + ": writing failed");
}

TrainOutputs::TrainOutputs(const TrainFlags& flags)
    : trace_("--trace", flags.trace),
      svg_("--svg", flags.svg),
      costs_("--profile", flags.profile) {}

void TrainOutputs::write(const Program& program, const Timeline& last, const Cost& cost) {
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
