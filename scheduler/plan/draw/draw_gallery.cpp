// The page of all schedules: words from the catalogue, pictures from draw_svg; see gallery.hpp.

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/draw.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/verify.hpp"
#include "plan/draw/pages.hpp"
#include "plan/draw/picture.hpp"

namespace millrace {

namespace {

std::string term(const char* name, const std::string& words) {
  return std::string("<dt>") + name + "</dt><dd>" + words + "</dd>\n";
}

std::string escaped(std::string_view text) {
  return picture::escaped(std::string(text));
}

std::string share(double ratio) {
  return picture::number(100 * ratio, 4) + " %";
}

std::string figures(const Program& program, const Report& report) {
  return "makespan " + picture::number(report.makespan) + ", bubble " +
         picture::number(report.bubble_makespan) + " (" + share(report.bubble_makespan_ratio()) +
         "); span " + picture::number(report.span) + ", bubble " +
         picture::number(report.bubble_span) + " (" + share(report.bubble_span_ratio()) +
         "); peak activation " + picture::number(report.largest(&RankReport::peak_activation)) +
         "; " +
         (accumulation(program).ascending ? "same bits as sequential"
                                          : "deterministic in an order of its own");
}

/// The figures and the picture, or why there are none.
std::string drawn(const ScheduleEntry& entry, int ranks, int micro_batches) {
  try {
    const Program program = generate(entry.name, {.ranks = ranks, .micro_batches = micro_batches});
    const Cost cost = Cost::unit(program.shape);
    const Graph graph(program);
    const auto timeline = std::get<Timeline>(simulate(graph, cost));
    return term("here", figures(program, report(graph, cost, timeline))) + "</dl>\n" +
           draw_svg(program, timeline, cost, program.name);
  } catch (const InvalidArgument& refusal) {
    return term("here", escaped(refusal.what())) + "</dl>\n";
  }
}

std::string section(const ScheduleEntry& entry, int ranks, int micro_batches) {
  const std::string name = escaped(entry.name);
  return "<section id=\"" + name + "\">\n<h2><code>" + name + "</code>" + escaped(entry.title) +
         "</h2>\n<dl>\n" + term("source", escaped(entry.source)) +
         term("needs", escaped(entry.needs)) + term("bubble", escaped(entry.bubble)) +
         term("peak activation", escaped(entry.peak)) + drawn(entry, ranks, micro_batches) +
         "</section>\n";
}

}  // namespace

std::string draw_gallery(int ranks, int micro_batches) {
  require(ranks >= 1 && micro_batches >= 1,
          "a gallery needs at least 1 rank and 1 micro-batch; got " + std::to_string(ranks) +
              " and " + std::to_string(micro_batches));
  const std::string counts =
      "p = " + std::to_string(ranks) + ", m = " + std::to_string(micro_batches);
  std::string page = picture::page_head("Pipeline schedules", gallery_style()) + "<h1>" +
                     std::to_string(schedules().size()) + " pipeline schedules at " + counts +
                     "</h1>\n"
                     "<p>p ranks, m micro-batches, v chunks per rank, q slices, g group, r a rank; "
                     "F, I, W and B = I + W are the times of a full stage, here 1 each for F, I "
                     "and W. A box is a pass; its number is the micro-batch. Formulas hold for "
                     "equal stages without latency; peaks and memory count "
                     "micro-batches of a full stage.</p>\n<nav>";
  for (const ScheduleEntry& entry : schedules())
    page += "<a href=\"#" + escaped(entry.name) + "\">" + escaped(entry.name) + "</a> ";
  page += "</nav>\n";
  for (const ScheduleEntry& entry : schedules()) page += section(entry, ranks, micro_batches);
  return page + "</body></html>\n";
}

}  // namespace millrace
