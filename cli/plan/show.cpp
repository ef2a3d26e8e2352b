// millrace show: a schedule as text in the terminal, or as any of the files.
#include <iostream>
#include <memory>
#include <string>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/plan/options.hpp"
#include "cli/plan/progress.hpp"
#include "cli/subcommands.hpp"
#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/draw.hpp"
#include "millrace/transport/launch.hpp"

namespace millrace::cli {

namespace {

// A terminal gets colours, unless NO_COLOR is set, and a picture of its width; a file or pipe the
// plain, full one.
AsciiOptions terminal() {
  if (::isatty(STDOUT_FILENO) == 0) return {};
  const Variables variables = own_environment();
  const auto found = variables.find("NO_COLOR");
  winsize size{};
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0;
  return {.colour = found == variables.end() || found->second.empty(),
          .columns = known ? size.ws_col : 0};
}

void print_messages(const Program& program) {
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    std::cout << "rank " << rank << ':';
    for (const Action& action : program.ranks[rank])
      std::cout << ' ' << to_string(action) << (action.with_next ? " +" : "");
    std::cout << '\n';
  }
}

void print(const Program& program,
           const Graph& graph,
           const Cost& cost,
           const Timeline& timeline,
           bool messages) {
  if (messages) return print_messages(program);
  const Report figures = report(graph, cost, timeline);
  std::cout << program.name << ": makespan " << plain(figures.makespan) << ", bubble "
            << plain(figures.bubble_makespan) << " (" << percent(figures.bubble_makespan_ratio())
            << ")";
  if (cost.passes > 1)
    std::cout << ", the last of " << cost.passes << " passes; step " << plain(figures.step);
  std::cout << '\n' << draw_ascii(program, timeline, terminal());
}

/// The lines of another engine's configuration, where no file is printed.
void print_settings(const Program& program, const PlanOptions& options) {
  const bool named = options.csv && !options.csv->empty() && *options.csv != "-";
  (prints_file(options) ? std::cerr : std::cout)
      << write_engine_csv(program, *options.engine, named ? *options.csv : "schedule.csv").settings;
}

void show(const std::string& subject, PlanOptions options) {
  if (options.engine && !options.csv) options.csv = "";
  check_outputs(options);
  require(!options.engine || options.comms == Comms::None,
          "--comms: leave it out with --for; PyTorch inserts sends and receives by itself");
  PlanProgress progress("show " + subject);
  progress.at("making the schedule");
  const Program program = program_of(subject, options);
  const Cost cost = cost_of(program.shape, options);
  progress.at("timing " + std::to_string(program.size()) + " actions");
  const Graph graph(program);
  const Timeline timeline = timeline_of(graph, cost);
  progress.at("drawing");
  const std::vector<OutputFile> files = outputs(options, program, cost, timeline, subject);
  progress.end();
  if (options.engine)
    print_settings(program, options);
  else if (!prints_file(options))
    print(program, graph, cost, timeline, options.comms != Comms::None);
  write_files(files);
}

}  // namespace

void add_show(CLI::App& app) {
  CLI::App* subcommand = app.add_subcommand("show", "Draw a schedule, or write it to a file");
  subcommand->footer(
      "A row per rank, time to the right: 0 is the forward of micro-batch 0, B0== its backward, I "
      "and "
      "W its\nhalves, R a recompute, + a gradient all-reduce, a dot idle time; a and b are chunks "
      "of "
      "the rank, 0.1\nis slice 1 of micro-batch 0.");
  auto subject = std::make_shared<std::string>();
  auto options = std::make_shared<PlanOptions>();
  subcommand->add_option("schedule", *subject, "Name (millrace list), plan file or CSV file")
      ->required();
  add_plan_options(*subcommand, *options);
  subcommand
      ->add_option_function<std::string>(
          "--for",
          [options](const std::string& name) { options->engine = parse_csv_engine(name); },
          "Write PyTorch's schedule CSV for torch, torchtitan or automodel, and print how to use "
          "it; a schedule that the engine would run wrongly is rejected")
      ->type_name("ENGINE");
  subcommand->callback([subject, options] { show(*subject, *options); });
}

}  // namespace millrace::cli
