// The page of a run: curves, where the time of each rank went, the last step.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fmt/format.h>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "millrace/scheduler/plan/draw.hpp"
#include "training/embedded.hpp"
#include "training/watch/record_fields.hpp"

namespace millrace {
namespace {

constexpr std::size_t kMostActions = 20'000;

struct Curve {
  std::string name;
  double HistoryPoint::*value;
  double factor = 1;      ///< what is drawn is the value times this
  std::string unit = {};  ///< behind numbers
};

/// A number for people: at most 4 digits, "1.50e-05" where that is shorter.
std::string short_number(double number) {
  std::array<char, 32> text{};
  const double size = std::abs(number);
  const bool plain = number == 0 || (size >= 0.001 && size < 1e7);
  const int digits = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : size >= 1 ? 3 : 4;
  std::snprintf(text.data(), text.size(), plain ? "%.*f" : "%.*e", plain ? digits : 2, number);
  return text.data();
}

std::string percent(double share) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f %%", 100 * share);
  return text.data();
}

std::string restarts_text(std::int64_t restarts) {
  return fmt::format("{} {}", restarts, restarts == 1 ? "restart" : "restarts");
}

constexpr double kWidth = 400, kHeight = 170;
constexpr double kLeft = 62, kRight = 12, kTop = 30, kBottom = 28;

std::string point_text(double x, double y) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.1f,%.1f", x, y);
  return text.data();
}

std::string words(double x, double y, const char* anchor, const std::string& text) {
  std::array<char, 96> head{};
  std::snprintf(
      head.data(), head.size(), R"(<text x="%.1f" y="%.1f" text-anchor="%s")", x, y, anchor);
  return head.data() + std::string(">") + text + "</text>\n";
}

/// Steps and values to pixels.
struct Frame {
  double first = 0, last = 0;  // steps
  double low = 0, high = 0;    // values

  [[nodiscard]] double x(double step) const {
    const double share = last > first ? (step - first) / (last - first) : 0.5;
    return kLeft + share * (kWidth - kLeft - kRight);
  }

  [[nodiscard]] double y(double value) const {
    const double share = high > low ? (value - low) / (high - low) : 0.5;
    return kHeight - kBottom - share * (kHeight - kTop - kBottom);
  }
};

Frame frame_of(const Curve& curve, const std::vector<HistoryPoint>& points) {
  Frame frame;
  frame.first = static_cast<double>(points.front().step);
  frame.last = static_cast<double>(points.back().step);
  frame.low = std::numeric_limits<double>::infinity();
  frame.high = -frame.low;
  for (const HistoryPoint& point : points) {
    const double value = point.*curve.value * curve.factor;
    if (!std::isfinite(value)) continue;
    frame.low = std::min(frame.low, value);
    frame.high = std::max(frame.high, value);
  }
  if (frame.high < frame.low) frame.low = frame.high = 0;
  return frame;
}

std::string line_of(const Curve& curve,
                    const std::vector<HistoryPoint>& points,
                    const Frame& frame) {
  std::string lines, marks, places;
  const auto end_line = [&] {
    if (!places.empty()) lines += "<polyline points=\"" + places + "\"/>\n";
    places.clear();
  };
  for (const HistoryPoint& point : points) {
    const double x = frame.x(static_cast<double>(point.step));
    if (point.skipped > 0)
      marks += "<circle class=\"skipped\" r=\"3\" cx=\"" + short_number(x) + "\" cy=\"" +
               short_number(kHeight - kBottom) + "\"/>\n";
    const double value = point.*curve.value * curve.factor;
    if (!std::isfinite(value)) {
      end_line();
      continue;
    }
    places += (places.empty() ? "" : " ") + point_text(x, frame.y(value));
  }
  end_line();
  return lines + marks;
}

/// A band at each restart, from the step before.
std::string bands_of(const std::vector<HistoryPoint>& points, const Frame& frame) {
  constexpr double kNarrowest = 3;
  std::string bands;
  double before = frame.x(frame.first);
  for (const HistoryPoint& point : points) {
    const double x = frame.x(static_cast<double>(point.step));
    if (point.restarts > 0)
      bands += fmt::format(
          "<rect class=\"restart\" x=\"{:.1f}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\">"
          "<title>{} before step {}</title></rect>\n",
          std::min(before, x - kNarrowest),
          kTop,
          std::max(x - before, kNarrowest),
          kHeight - kTop - kBottom,
          restarts_text(point.restarts),
          point.step);
    before = x;
  }
  return bands;
}

/// Line over steps, with its smallest, largest and last value; broken where a value is not finite,
/// and marked below where steps were skipped. Cost: O(points).
std::string draw_curve(const Curve& curve, const std::vector<HistoryPoint>& points) {
  if (points.empty()) return {};
  const Frame frame = frame_of(curve, points);
  const double last = points.back().*curve.value * curve.factor;
  std::string text = "<svg class=\"curve\" viewBox=\"0 0 " + short_number(kWidth) + " " +
                     short_number(kHeight) + "\" role=\"img\" aria-label=\"" + curve.name + "\">\n";
  text += "<rect x=\"" + short_number(kLeft) + "\" y=\"" + short_number(kTop) + "\" width=\"" +
          short_number(kWidth - kLeft - kRight) + "\" height=\"" +
          short_number(kHeight - kTop - kBottom) + "\"/>\n";
  text += "<g class=\"name\">" + words(kLeft, 19, "start", curve.name) + "</g>";
  text += words(kWidth - kRight, 19, "end", "last " + short_number(last) + curve.unit);
  text += words(kLeft - 6, kTop + 10, "end", short_number(frame.high));
  if (frame.high > frame.low)
    text += words(kLeft - 6, kHeight - kBottom, "end", short_number(frame.low));
  text += words(kLeft, kHeight - 10, "start", "step " + std::to_string(points.front().step));
  text += words(kWidth - kRight, kHeight - 10, "end", std::to_string(points.back().step));
  return text + bands_of(points, frame) + line_of(curve, points, frame) + "</svg>\n";
}

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
  RankTimes times = rank.times;
  times.wait = std::max(0.0, times.wait + times.transfer - rank.bubble.total());  // between passes
  std::vector<Part> parts;
  for (const auto& [key, cause, colour, seconds] : kRankTimes)
    if (colour != nullptr) parts.push_back({cause, colour, times.*seconds});
  auto at = parts.begin() + 1;  // after compute
  for (const auto& [key, cause, colour, seconds] : kBubble)
    at = parts.insert(at, {cause, colour, rank.bubble.*seconds}) + 1;
  return parts;
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
  if (!points.empty() && !std::isnan(points.back().validation_loss)) {
    curves.push_back({"validation loss", &HistoryPoint::validation_loss});
    curves.push_back({"validation accuracy (%)", &HistoryPoint::validation_accuracy, 100, " %"});
  }
  std::string text = "<h2>Curves</h2>\n<p class=\"quiet\">";
  text += history.steps_per_point() == 1
              ? "A point per step."
              : "A point is the mean of " + std::to_string(history.steps_per_point()) + " steps.";
  text +=
      " A dot on the axis marks steps that were skipped, a band a restart.</p>\n<div "
      "id=\"curves\">\n";
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
  if (totals.restarts() > 0)
    text += fmt::format(", {}, {} s of downtime, goodput {}",
                        restarts_text(totals.restarts()),
                        short_number(totals.downtime()),
                        percent(totals.goodput()));
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
  const auto style = run_page_style();
  return "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>" + title +
         "</title>\n<meta name=\"viewport\" content=\"width=device-width, "
         "initial-scale=1\">\n<style>\n" +
         std::string(style.begin(), style.end()) + "</style></head><body>\n<h1>" + title +
         "</h1>\n<p class=\"quiet\">" + escaped(page.subtitle) + "</p>\n" +
         summary_of(page.totals) + curves_of(page.history) + table_of(page.totals) +
         timeline_of(page) + "</body></html>\n";
}

}  // namespace millrace
