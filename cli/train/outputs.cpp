#include <utility>
#include <vector>

#include "cli/files.hpp"
#include "cli/train/records.hpp"
#include "millrace/scheduler/plan/costs.hpp"
#include "millrace/scheduler/plan/draw.hpp"
#include "millrace/scheduler/plan/graph.hpp"

namespace millrace::cli {

TrainOutputs::TrainOutputs(const TrainFlags& flags)
    : trace_(flags.trace), svg_(flags.svg), costs_(flags.profile) {
  for (const auto& [option, path] :
       {std::pair("--trace", &trace_), {"--svg", &svg_}, {"--profile", &costs_}})
    if (!path->empty()) require_writable(option, *path);
}

void TrainOutputs::write(const Program& program, const Timeline& last, const Cost& cost) const {
  std::vector<OutputFile> files;
  if (!trace_.empty()) files.push_back({"--trace", trace_, draw_trace(program, last)});
  if (!svg_.empty())
    files.push_back({"--svg", svg_, draw_svg(program, last, cost, program.name + ", measured")});
  if (!costs_.empty()) {
    files.push_back({"--profile", costs_, write_costs(costs_of_stages(program.shape, cost))});
  }
  write_files(files);
}

}  // namespace millrace::cli
