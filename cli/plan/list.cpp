// millrace list: the catalogue of schedules as a table.
#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/files.hpp"
#include "cli/verbs.hpp"
#include "cli/vocabulary.hpp"
#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/draw.hpp"
#include "millrace/scheduler/plan/generators.hpp"

namespace millrace::cli {

namespace {

std::string options_of(const ScheduleEntry& entry) {
  std::string text;
  for (const ScheduleParameter& parameter : kScheduleParameters)
    if (entry.takes(parameter.name)) text += (text.empty() ? "" : " ") + flag(parameter.name);
  return text;
}

std::vector<std::string> row_of(const ScheduleEntry& entry) {
  return {std::string(entry.name),
          options_of(entry),
          std::string(entry.needs),
          std::string(entry.bubble),
          std::string(entry.peak),
          std::string(entry.source)};
}

void print_table() {
  std::vector<std::vector<std::string>> rows = {{"name",
                                                 "options",
                                                 "needs",
                                                 "bubble (equal stages, no latency)",
                                                 "peak activation",
                                                 "source"}};
  for (const ScheduleEntry& entry : schedules()) rows.push_back(row_of(entry));
  std::vector<std::size_t> widths(rows.front().size());
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) line += std::string(widths[i] - row[i].size() + 2, ' ');
    }
    std::cout << line << '\n';
  }
}

void print_json() {
  nlohmann::json rows = nlohmann::json::array();
  for (const ScheduleEntry& entry : schedules())
    rows.push_back({{"name", entry.name},
                    {"title", entry.title},
                    {"options", options_of(entry)},
                    {"needs", entry.needs},
                    {"bubble", entry.bubble},
                    {"peak", entry.peak},
                    {"source", entry.source}});
  std::cout << rows.dump(2) << '\n';
}

void run(bool json, const std::optional<std::string>& html) {
  const bool printed = html && (html->empty() || *html == "-");
  require(!printed || !json,
          "--json and --html would both go to standard output; give --html a file");
  std::vector<OutputFile> files;
  if (html) files.push_back({"--html", *html, draw_gallery()});
  if (json)
    print_json();
  else if (!html)
    print_table();
  write_files(files);
}

}  // namespace

void add_list(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("list", "Print the schedules: names, options, closed forms");
  verb->footer(
      "p ranks, m micro-batches, v chunks per rank, q slices, g group, r a rank; F, I, W, B = I + "
      "W\n"
      "are the costs of a full stage; peak in micro-batches of a full stage.");
  auto json = std::make_shared<bool>(false);
  auto html = std::make_shared<std::optional<std::string>>();
  verb->add_flag("--json", *json, "Print one JSON array");
  verb->add_option_function<std::string>(
          "--html",
          [html](const std::string& path) { *html = path; },
          "Write a page with every schedule drawn at p = 4, m = 8 (no FILE: standard output)")
      ->expected(0, 1)
      ->type_name("FILE");
  verb->callback([json, html] { run(*json, *html); });
}

}  // namespace millrace::cli
