// millrace list: the catalogue of schedules as a table.
#include <algorithm>
#include <fmt/format.h>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/files.hpp"
#include "cli/subcommands.hpp"
#include "cli/vocabulary.hpp"
#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/draw.hpp"
#include "millrace/scheduler/plan/generators.hpp"

namespace millrace::cli {

namespace {

constexpr const char* kSymbols =
    "p ranks, m micro-batches, v chunks per rank, q slices, g group, r a rank; F, I, W, B = I + W "
    "are "
    "the\ncosts of a full stage. Bubbles hold for equal stages without latency; peaks count "
    "micro-batches of a\nfull stage.";

std::string options_of(const ScheduleEntry& entry, bool with_counts) {
  std::string text;
  for (const ScheduleParameter& parameter : kScheduleParameters)
    if (entry.takes(parameter.name) &&
        (with_counts || (parameter.name != "ranks" && parameter.name != "micro_batches")))
      text += (text.empty() ? "" : " ") + flag(parameter.name);
  return text;
}

void print_table() {
  const auto print = [](std::string_view name, std::string_view title, std::string_view options) {
    std::string line = fmt::format("{:<19}{:<61} {}", name, title, options);
    line.resize(line.find_last_not_of(' ') + 1);
    std::cout << line << '\n';
  };
  print("name", "schedule (formulas: millrace list NAME)", "more options");
  for (const ScheduleEntry& entry : schedules())
    print(entry.name, entry.title, options_of(entry, false));
}

/// "bubble  (p-1)(F+B)": a line per case.
void print_entry(const ScheduleEntry& entry) {
  std::cout << entry.name << ": " << entry.title << '\n';
  const std::string options = options_of(entry, true);
  for (const auto& [name, text] : {std::pair("options", std::string_view(options)),
                                   {"needs", entry.needs},
                                   {"bubble", entry.bubble},
                                   {"peak activations", entry.peak},
                                   {"source", entry.source}}) {
    std::string_view rest = text;
    for (std::string_view title = name; !rest.empty(); title = "") {
      const std::size_t end = std::min(rest.find("; "), rest.size());
      std::cout << fmt::format("{:<18}{}\n", title, rest.substr(0, end));
      rest.remove_prefix(std::min(end + 2, rest.size()));
    }
  }
  std::cout << '\n' << kSymbols << '\n';
}

void print_json() {
  nlohmann::json rows = nlohmann::json::array();
  for (const ScheduleEntry& entry : schedules())
    rows.push_back({{"name", entry.name},
                    {"title", entry.title},
                    {"options", options_of(entry, true)},
                    {"needs", entry.needs},
                    {"bubble", entry.bubble},
                    {"peak", entry.peak},
                    {"source", entry.source}});
  std::cout << rows.dump(2) << '\n';
}

struct ListArguments {
  std::string schedule;  ///< empty: all
  bool json = false;
  std::optional<std::string> html;
};

void run(const ListArguments& arguments) {
  const auto& [schedule, json, html] = arguments;
  const bool printed = html && (html->empty() || *html == "-");
  require(!printed || !json,
          "--json and --html would both go to standard output; give --html a file");
  require(schedule.empty() || (!json && !html),
          "--json and --html are of all schedules; leave " + schedule + " out");
  std::vector<OutputFile> files;
  if (html) files.push_back({"--html", *html, draw_gallery()});
  if (!schedule.empty())
    print_entry(find_schedule(schedule));
  else if (json)
    print_json();
  else if (!html)
    print_table();
  write_files(files);
}

}  // namespace

void add_list(CLI::App& app) {
  CLI::App* subcommand =
      app.add_subcommand("list", "Print the schedules: names, options, closed forms");
  subcommand->footer(kSymbols);
  auto arguments = std::make_shared<ListArguments>();
  subcommand->add_option(
      "schedule", arguments->schedule, "Only this one, with its formulas and source");
  subcommand->add_flag("--json", arguments->json, "Print one JSON array");
  subcommand
      ->add_option_function<std::string>(
          "--html",
          [arguments](const std::string& path) { arguments->html = path; },
          "Write a page with every schedule drawn at p = 4, m = 8 (no FILE: standard output)")
      ->expected(0, 1)
      ->type_name("FILE");
  subcommand->callback([arguments] { run(*arguments); });
}

}  // namespace millrace::cli
