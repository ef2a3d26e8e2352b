// millrace split: which layers belong to which stage, by measured time.
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/files.hpp"
#include "cli/numbers.hpp"
#include "cli/plan/options.hpp"
#include "cli/subcommands.hpp"
#include "cli/vocabulary.hpp"
#include "millrace/core/error.hpp"
#include "millrace/stages/partition.hpp"

namespace millrace::cli {

namespace {

using Text = const std::string&;

struct SplitArguments {
  std::string profile;
  int ranks = 0;
  int chunks = 1;
  bool json = false;
  std::optional<std::string> out;
};

/// Time of the slowest of the stages.
double slowest(const Costs& costs) {
  double most = 0;
  for (const double seconds : stage_times(costs)) most = std::max(most, seconds);
  return most;
}

/// "2,4,5": what train --partition takes.
std::string first_layers(const std::vector<int>& boundaries) {
  std::string text;
  for (std::size_t s = 1; s + 1 < boundaries.size(); ++s)
    text += (s == 1 ? "" : ",") + std::to_string(boundaries[s]);
  return text;
}

void print(const Costs& layers, const std::vector<int>& boundaries, const Costs& cut) {
  const std::vector<double> times = stage_times(cut);
  const double most = slowest(cut);
  std::vector<std::vector<std::string>> rows = {{"stage", "layers", "time", "of the slowest"}};
  for (std::size_t s = 0; s < times.size(); ++s)
    rows.push_back({std::to_string(s),
                    std::to_string(boundaries[s]) + " to " + std::to_string(boundaries[s + 1] - 1),
                    plain(times[s]),
                    percent(most > 0 ? times[s] / most : 1)});
  const Costs even = merged_stages(layers, even_boundaries(layers.stages, cut.stages), cut.ranks);
  std::cout << table(rows) << "\nslowest stage " << plain(most) << " " << layers.unit
            << "; cut evenly " << plain(slowest(even)) << " " << layers.unit << '\n';
  if (cut.stages > 1) std::cout << "first layers  " << first_layers(boundaries) << '\n';
}

void print_json(const std::vector<int>& boundaries, const Costs& cut) {
  const nlohmann::json all = {{"p", cut.ranks},
                              {"v", cut.stages / cut.ranks},
                              {"layers", boundaries.back()},
                              {"boundaries", boundaries},
                              {"stage_times", stage_times(cut)},
                              {"slowest", slowest(cut)},
                              {"unit", cut.unit}};
  std::cout << all.dump() << '\n';
}

void run(const SplitArguments& arguments) {
  const bool printed = arguments.out && (arguments.out->empty() || *arguments.out == "-");
  require(!printed || !arguments.json,
          "--json and --out would both go to standard output; give --out a file");
  if (arguments.out) require_writable("--out", *arguments.out);
  const Costs layers = costs_in("the profile", arguments.profile);
  const std::vector<int> boundaries =
      balanced_boundaries(stage_times(layers), arguments.ranks * arguments.chunks);
  const Costs cut = merged_stages(layers, boundaries, arguments.ranks);
  std::vector<OutputFile> files;
  if (arguments.out) files.push_back({"--out", *arguments.out, write_costs(cut)});
  if (arguments.json)
    print_json(boundaries, cut);
  else if (!printed)
    print(layers, boundaries, cut);
  write_files(files);
}

void add_count(CLI::App& subcommand, const std::string& name, int& count, const char* what) {
  subcommand.add_option_function<std::string>(
      name,
      [option = name.substr(0, 2), &count](Text text) {
        count = static_cast<int>(whole_number(option, text, 1, 1 << 15));
      },
      what);
}

}  // namespace

void add_split(CLI::App& app) {
  CLI::App* subcommand =
      app.add_subcommand("split", "Cut layers into stages by their measured times");
  auto arguments = std::make_shared<SplitArguments>();
  subcommand->footer(
      "PROFILE is a cost file with a layer where others have a stage: train --ranks L --profile F\n"
      "of a model with L layers writes one, import makes one from a trace. The slowest stage is "
      "as\n"
      "fast as any cut allows. --out writes the costs of the stages, for simulate and search.");
  subcommand->add_option("profile", arguments->profile, "Cost file of the layers")->required();
  add_count(*subcommand, flags("ranks"), arguments->ranks, "Ranks");
  subcommand->get_option(flag("ranks"))->required();
  add_count(*subcommand, flags("chunks"), arguments->chunks, "Chunks per rank (default 1)");
  subcommand->add_flag("--json", arguments->json, "Print one JSON object");
  subcommand
      ->add_option_function<std::string>(
          "--out",
          [arguments](Text text) { arguments->out = text; },
          "Write the costs of the stages as a cost file")
      ->type_name("FILE");
  subcommand->callback([arguments] { run(*arguments); });
}

}  // namespace millrace::cli
