// The page of a run; see run_page.hpp.
#include "millrace/training/run_page.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "millrace/scheduler/plan/draw.hpp"
#include "millrace/training/measurement.hpp"
#include "training/watch/curve.hpp"

namespace millrace {
namespace {

constexpr std::size_t kMostActions = 20'000;

const char* const kHead = R"page(
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light; font: 14px/1.45 system-ui, "Helvetica Neue", Arial, sans-serif; color: #1d1d22; }
body { margin: 0 auto; padding: 18px 24px; max-width: 1340px; }
h1 { font-size: 19px; margin: 0 0 2px; }
h2 { font-size: 15px; margin: 22px 0 6px; }
.quiet { color: #666; }
#bottleneck { font-size: 16px; margin: 12px 0; padding: 8px 12px; border-left: 4px solid #c2185b; background: #faf4f7; }
#curves { display: grid; grid-template-columns: repeat(auto-fill, minmax(390px, 1fr)); gap: 10px; }
svg.curve { width: 100%; border: 1px solid #e2e2e6; border-radius: 6px; font-size: 11px; fill: #555; }
svg.curve rect { fill: #f7f7f9; }
svg.curve polyline { fill: none; stroke: #1565c0; stroke-width: 1.4; stroke-linejoin: round; }
svg.curve .name { font-size: 13px; font-weight: 600; fill: #1d1d22; }
svg.curve .skipped { fill: #c2185b; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
table { font-size: 13px; }
th, td { text-align: right; padding: 2px 5px; border-bottom: 1px solid #eee; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
td:nth-child(2) { width: 100%; }
.bar { display: flex; height: 18px; min-width: 120px; border-radius: 3px; overflow: hidden; background: #eee; }
.bar span { height: 100%; }
.key span { display: inline-block; width: 12px; height: 12px; border-radius: 2px; margin: 0 4px 0 0; vertical-align: -1px; }
.wide { overflow-x: auto; }
</style></head><body>
)page";

/// Text of a user inside the page.
std::string escaped(const std::string& text) {
  std::string safe;
  for (const char letter : text) {
    switch (letter) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      default:
        safe += letter;
    }
  }
  return safe;
}

/// What a rank's bar is made of.
struct Part {
  const char* name;
  const char* colour;
  double seconds;
};

std::vector<Part> parts_of(const RankRecord& rank) {
  const Bubble& bubble = rank.bubble;
  const RankTimes& times = rank.times;
  const double around = std::max(0.0, times.wait + times.transfer - bubble.total());
  return {{"compute", "#2e7d32", times.compute},
          {"warm-up", "#90caf9", bubble.warm_up},
          {"drain", "#42a5f5", bubble.drain},
          {"imbalance", "#ef6c00", bubble.imbalance},
          {"dependency", "#ffb74d", bubble.dependency},
          {"transfer", "#8e24aa", bubble.transfer},
          {"delay", "#c62828", bubble.delay},
          {"wait", "#b0bec5", around},
          {"data", "#6d4c41", times.data},
          {"optimizer", "#00897b", times.optimizer},
          {"save", "#3949ab", times.save},
          {"other", "#757575", times.other}};
}

std::string percent(double share) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f %%", 100 * share);
  return text.data();
}

std::string row_of(const RankRecord& rank, bool several_copies) {
  const auto parts = parts_of(rank);
  double all = 0;
  for (const Part& part : parts) all += part.seconds;
  if (all <= 0) return {};
  std::string bar, cells;
  for (const Part& part : parts) {
    const double share = part.seconds / all;
    cells += "<td>" + percent(share) + "</td>";
    if (share > 0)
      bar += std::string("<span style=\"background:") + part.colour +
             ";width:" + std::to_string(100 * share) + "%\" title=\"" + part.name + " " +
             percent(share) + "\"></span>";
  }
  return "<tr><td>rank " + std::to_string(rank.rank.value) +
         (several_copies ? ", copy " + std::to_string(rank.copy) : "") +
         "</td><td><div class=\"bar\">" + bar + "</div></td>" + cells + "</tr>\n";
}

std::string table_of(const StepTotals& totals) {
  std::string text =
      "<h2>Where the time of every rank went</h2>\n<div class=\"wide\"><table><tr>"
      "<th></th><th></th>";
  for (const Part& part : parts_of({})) {
    text += std::string("<th class=\"key\"><span style=\"background:") + part.colour +
            "\"></span>" + part.name + "</th>";
  }
  text += "</tr>\n";
  const bool several = !totals.ranks().empty() && totals.ranks().back().copy > 0;
  for (const RankRecord& rank : totals.ranks()) text += row_of(rank, several);
  return text + "</table></div>\n";
}

std::string curves_of(const RunHistory& history) {
  const auto points = history.points();
  std::vector<Curve> curves = {{"loss", &HistoryPoint::loss},
                               {"gradient norm", &HistoryPoint::gradient_norm},
                               {"learning rate", &HistoryPoint::learning_rate},
                               {"samples per second", &HistoryPoint::samples_per_second},
                               {"bubble (%)", &HistoryPoint::bubble, 100, " %"}};
  if (std::any_of(points.begin(), points.end(), [](const HistoryPoint& point) {
        return point.loss_scale != 1;
      }))
    curves.push_back({"loss scale", &HistoryPoint::loss_scale});
  std::string text = "<h2>Curves</h2>\n<p class=\"quiet\">";
  text += history.steps_per_point() == 1
              ? "A point per step."
              : "A point is the mean of " + std::to_string(history.steps_per_point()) + " steps.";
  text += " A dot on the axis marks steps that were skipped.</p>\n<div id=\"curves\">\n";
  for (const Curve& curve : curves) text += draw_curve(curve, points);
  return text + "</div>\n";
}

std::string timeline_of(const RunPage& page) {
  std::string text = "<h2>The last step</h2>\n";
  if (page.last.ranks.empty()) return text + "<p>There is none.</p>\n";
  if (page.program.size() > kMostActions)
    return text + "<p>Its timeline has " + std::to_string(page.program.size()) +
           " actions, too many for a picture.</p>\n";
  Profile profile(page.program);
  profile.add(page.last);
  Cost cost = profile.cost({}, {});
  for (auto* memory : {&cost.memory_forward,
                       &cost.memory_input_peak,
                       &cost.memory_input,
                       &cost.memory_weight,
                       &cost.memory_boundary})
    memory->clear();
  const std::string picture = draw_svg(page.program, page.last, cost);
  return text + "<div class=\"wide\">" + picture.substr(picture.find("<svg")) + "</div>\n";
}

std::string summary_of(const StepTotals& totals) {
  std::string text = "<p class=\"quiet\">" + std::to_string(totals.steps()) +
                     (totals.steps() == 1 ? " step, " : " steps, ") +
                     std::to_string(totals.samples()) + " samples in " +
                     short_number(totals.seconds()) + " s";
  if (totals.skipped() > 0) text += ", " + std::to_string(totals.skipped()) + " skipped";
  text += "</p>\n<p id=\"bottleneck\">" + escaped(bottleneck(totals)) + "</p>\n";
  text += "<p class=\"quiet\">";
  bool first = true;
  for (const TimeShare& share : time_shares(totals))
    if (share.share > 0)
      text += (std::exchange(first, false) ? "" : " · ") + share.cause + " " + percent(share.share);
  return text + "</p>\n";
}

}  // namespace

std::string draw_page(const RunPage& page) {
  const std::string title = escaped(page.title);
  return "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>" + title +
         "</title>" + kHead + "<h1>" + title + "</h1>\n<p class=\"quiet\">" +
         escaped(page.subtitle) + "</p>\n" + summary_of(page.totals) + curves_of(page.history) +
         table_of(page.totals) + timeline_of(page) + "</body></html>\n";
}

}  // namespace millrace
