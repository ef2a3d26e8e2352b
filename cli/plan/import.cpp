// millrace import: costs for simulate and search from a trace that another program wrote.
#include <array>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/files.hpp"
#include "cli/numbers.hpp"
#include "cli/plan/progress.hpp"
#include "cli/subcommands.hpp"
#include "cli/vocabulary.hpp"
#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/costs.hpp"
#include "millrace/scheduler/plan/rank_traces.hpp"
#include "millrace/training/dataset.hpp"

namespace millrace::cli {

namespace {

using Text = const std::string&;

struct ImportArguments {
  std::vector<std::string> traces;
  TraceCostOptions options;
  bool named = false;        ///< by patterns
  bool v_placement = false;  ///< of Primus' chunks
  std::string out = "-";
  std::string trace;
};

StageOf stage_of(Text word) {
  for (const auto& [name, value] : {std::pair{"name", StageOf::Name},
                                    {"pid", StageOf::Process},
                                    {"tid", StageOf::Thread},
                                    {"file", StageOf::File}})
    if (word == name) return value;
  throw InvalidArgument("--stage-from " + word + ": must be name, pid, tid or file");
}

/// What was found, on standard error: the costs may go to standard output.
void print(const TraceCosts::Seen& seen, const Costs& file) {
  constexpr std::array<const char*, 4> ops = {"F", "B", "I", "W"};
  std::cerr << "millrace: medians of";
  for (std::size_t op = 0; op < ops.size(); ++op)
    if (seen.events[op] > 0) std::cerr << ' ' << seen.events[op] << ' ' << ops[op];
  std::cerr << " over " << file.stages << (file.stages == 1 ? " stage" : " stages");
  if (seen.micro_batches > 0) std::cerr << " and " << seen.micro_batches << " micro-batches";
  std::cerr << '\n';
  if (!file.assumed.empty()) std::cerr << "millrace: assumed: " << file.assumed << '\n';
}

void run(const ImportArguments& arguments) {
  if (arguments.out != "-") require_writable("--out", arguments.out);
  if (!arguments.trace.empty()) require_writable("--trace", arguments.trace);
  TraceCosts costs(arguments.options);
  RankTraces ranks(arguments.v_placement);
  PlanProgress progress("import");
  std::string cut;
  for (const std::string& path : arguments.traces) {
    progress.at("reading " + path);
    const std::vector<std::uint8_t> bytes = millrace::read_file(path, kTraceLimit);
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    const bool of_rank = !arguments.named && ranks.add(text);
    const auto fault = costs.add(text);
    if (fault && !of_rank) throw DataError(path + ":" + to_string(*fault));
    if (const auto events = costs.cut_after())
      cut += "millrace: " + path + " ends within its list of events: read to the last whole one, " +
             std::to_string(*events) + " in all\n";
  }
  if (!ranks.empty()) static_cast<void>(costs.add(ranks.trace(false)));
  require(arguments.trace.empty() || !ranks.empty(),
          "--trace: needs traces of PyTorch's pipeline engine or of Primus");
  const Costs file = costs.costs();
  const std::string text = write_costs(file);
  progress.end();
  std::cerr << cut;
  print(costs.seen(), file);
  std::vector<OutputFile> files = {{"--out", arguments.out, text}};
  if (!arguments.trace.empty()) files.push_back({"--trace", arguments.trace, ranks.trace(true)});
  write_files(files);
}

void add_patterns(CLI::App& subcommand, ImportArguments& arguments) {
  TracePatterns& patterns = arguments.options.patterns;
  for (const auto& [option, pattern, what] :
       {std::tuple{"--forward", &patterns.forward, "Names of the events that are an F"},
        {"--backward", &patterns.backward, "Names of the events that are a full backward B"},
        {"--input", &patterns.input, "Names of the events that are an I"},
        {"--weight", &patterns.weight, "Names of the events that are a W"}})
    subcommand
        .add_option_function<std::string>(
            option,
            [&arguments, target = pattern](Text text) {
              *target = text;
              arguments.named = true;
            },
            what)
        ->type_name("PATTERN");
}

}  // namespace

void add_import(CLI::App& app) {
  CLI::App* subcommand = app.add_subcommand(
      "import", "Make a cost file from a Chrome, Perfetto, PyTorch (Kineto) or Primus trace");
  auto arguments = std::make_shared<ImportArguments>();
  subcommand->footer(
      "A pattern is the name of an event, with {stage}, {micro_batch} and {slice} where a number\n"
      "stands, * for anything, | between alternatives: --forward 'Forward {micro_batch}'. Left "
      "out,\n"
      "they are the names of millrace's own traces, '{stage}F{micro_batch}', of PyTorch's "
      "pipeline\n"
      "engine (one file per rank, in order) and of Primus (pp_rank_N.json in order, config.json). "
      "A\n"
      "time is the median per op and stage; of names that Kineto gives for host and device, the\n"
      "device's count.");
  subcommand->add_option("traces", arguments->traces, "Trace files, JSON or gzipped JSON")
      ->required();
  add_patterns(*subcommand, *arguments);
  subcommand
      ->add_option_function<std::string>(
          "--stage-from",
          [arguments](Text text) { arguments->options.stage = stage_of(text); },
          "Source of a stage that is not in the name: pid, tid (in ascending order) or "
          "file (the first trace is stage 0); default name")
      ->type_name("WHERE");
  subcommand
      ->add_option("--category", arguments->options.category, "Only events of this category (cat)")
      ->type_name("CAT");
  subcommand->add_option_function<std::string>(
      flags("ranks"),
      [arguments](Text text) {
        arguments->options.ranks = static_cast<int>(whole_number(flag("ranks"), text, 1, 1 << 20));
      },
      "Ranks that share the stages (default: as many as stages)");
  subcommand->add_flag(
      "--forward-only", arguments->options.forward_only, "Want no backward; its times are 0");
  subcommand
      ->add_option("--out", arguments->out, "Write the cost file there (default: standard output)")
      ->type_name("FILE");
  subcommand
      ->add_option("--trace",
                   arguments->trace,
                   "Write the last step of all ranks as one trace, for millrace compare PLAN FILE")
      ->type_name("FILE");
  subcommand->add_flag("--v-placement",
                       arguments->v_placement,
                       "Primus' chunk 1 of rank r is stage 2p-1-r (a V), not p + r (a loop)");
  subcommand->callback([arguments] { run(*arguments); });
}

}  // namespace millrace::cli
