// The Pareto front of a search: filter, table, picture.
#include <algorithm>
#include <cmath>
#include <tuple>

#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/search.hpp"
#include "plan/draw/picture.hpp"

namespace millrace {

namespace {

using picture::number;

constexpr std::size_t kListRow = 18;

bool beats(const FoundSchedule& a, const FoundSchedule& b) {
  return a.makespan <= b.makespan && a.step <= b.step && a.span <= b.span &&
         a.peak_memory <= b.peak_memory;
}

std::string label(const FoundSchedule& found) {
  std::string text = found.generator;
  if (!found.parameters.empty()) text += " " + to_string(found.parameters);
  if (!found.refinement.empty()) text += " + " + found.refinement;
  if (std::ranges::find(found.recomputed, true) != found.recomputed.end())
    text += " + recompute " + describe_recompute(found.program);
  return text;
}

/// Whether its step is one of several passes.
bool has_passes(const FoundSchedule& found) {
  return found.step > found.makespan;
}

std::string padded(const std::string& text, std::size_t width) {
  return std::string(width > text.size() ? width - text.size() : 0, ' ') + text;
}

/// Maps values to the pixels of one axis. Its ends are marks, with `step` from one to the next.
struct Axis {
  double low = 0, high = 1, step = 1, from = 0, to = 1;

  void cover(double least, double most) {
    step = picture::nice_step(most > least ? most - least : std::max(1.0, std::abs(most)), 6);
    low = std::floor(least / step) * step;
    high = std::max(std::ceil(most / step) * step, low + step);
  }

  [[nodiscard]] double at(double value) const {
    return from + (value - low) / (high - low) * (to - from);
  }

  [[nodiscard]] int marks() const { return static_cast<int>(std::lround((high - low) / step)); }
};

std::string text_at(double x, double y, const std::string& anchor, const std::string& text) {
  return "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" text-anchor=\"" + anchor + "\">" +
         text + "</text>\n";
}

std::string line(double x1, double y1, double x2, double y2, const std::string& name) {
  return "<path d=\"M" + number(x1) + " " + number(y1) + "L" + number(x2) + " " + number(y2) +
         "\" class=\"" + name + "\"/>\n";
}

std::string dot(double x, double y, double radius, const std::string& name) {
  return "<circle cx=\"" + number(x) + "\" cy=\"" + number(y) + "\" r=\"" + number(radius) +
         "\" class=\"" + name + "\"/>";
}

std::string axes(const Axis& x, const Axis& y) {
  std::string svg;
  for (int i = 0; i <= x.marks(); ++i) {
    const double memory = x.low + i * x.step;
    svg += line(x.at(memory), y.from, x.at(memory), y.to, "grid");
    svg += text_at(x.at(memory), y.from + 18, "middle", number(memory));
  }
  for (int i = 0; i <= y.marks(); ++i) {
    const double time = y.low + i * y.step;
    svg += line(x.from, y.at(time), x.to, y.at(time), "grid");
    svg += text_at(x.from - 8, y.at(time) + 4, "end", number(time));
  }
  return svg + text_at((x.from + x.to) / 2, y.from + 40, "middle", "peak memory of a rank");
}

/// What the marks mean, above the axes.
std::string legend(double x, double y) {
  return dot(x + 4, y - 4, 4, "makespan") + text_at(x + 14, y, "start", "makespan") +
         dot(x + 96, y - 4, 6, "span") +
         text_at(x + 108, y, "start", "span, when steps overlap (time of a step)");
}

/// A schedule: its two times over its memory.
std::string point(const Axis& x, const Axis& y, const FoundSchedule& found) {
  const double column = x.at(found.peak_memory);
  const double makespan = y.at(found.makespan), span = y.at(found.span);
  return "<g><title>" + picture::escaped(label(found)) + ": makespan " + number(found.makespan) +
         (has_passes(found) ? ", step " + number(found.step) : "") + ", span " +
         number(found.span) + ", peak memory " + number(found.peak_memory) + "</title>" +
         line(column, makespan, column, span, "both") + dot(column, makespan, 4, "makespan") +
         dot(column, span, 6, "span") + "</g>\n";
}

/// Whether a point stands over or under its neighbour in the front.
bool shares_column(const std::vector<FoundSchedule>& front, std::size_t i, const Axis& x) {
  const auto near = [&](std::size_t j) {
    return j < front.size() &&
           std::abs(x.at(front[j].peak_memory) - x.at(front[i].peak_memory)) < 8;
  };
  return near(i + 1) || (i > 0 && near(i - 1));
}

/// The number that the list gives a schedule: above its point, or beside it in a shared column.
std::string numeral(
    const Axis& x, const Axis& y, const FoundSchedule& found, bool beside, std::size_t n) {
  const double column = x.at(found.peak_memory), row = y.at(found.makespan);
  return beside ? text_at(column + 10, row + 4, "start", std::to_string(n))
                : text_at(column, row - 10, "middle", std::to_string(n));
}

}  // namespace

std::vector<FoundSchedule> pareto_front(std::vector<FoundSchedule> found) {
  std::ranges::stable_sort(found, {}, [](const FoundSchedule& one) {
    return std::tuple(one.peak_memory, one.makespan, one.span);
  });
  std::vector<FoundSchedule> front;
  for (FoundSchedule& candidate : found) {
    const auto beaten = [&](const FoundSchedule& kept) { return beats(kept, candidate); };
    if (std::ranges::none_of(front, beaten)) front.push_back(std::move(candidate));
  }
  return front;
}

std::string front_table(const std::vector<FoundSchedule>& front) {
  const bool passes = std::ranges::any_of(front, has_passes);
  const auto step = [&](const std::string& text) { return passes ? padded(text, 14) : ""; };
  std::string table = padded("peak memory", 12) + padded("makespan", 14) + step("step") +
                      padded("span", 14) + "  schedule\n";
  for (const FoundSchedule& found : front)
    table += padded(number(found.peak_memory), 12) + padded(number(found.makespan), 14) +
             step(number(found.step)) + padded(number(found.span), 14) + "  " + label(found) + "\n";
  return table;
}

std::string front_svg(const std::vector<FoundSchedule>& front) {
  Axis x{.from = 70, .to = 600};
  Axis y{.from = 340, .to = 44};
  if (!front.empty()) {
    x.cover(front.front().peak_memory, front.back().peak_memory);
    const auto span = [](const FoundSchedule& found) {
      return std::min(found.span, found.makespan);
    };
    y.cover(span(*std::ranges::min_element(front, {}, span)),
            std::ranges::max_element(front, {}, &FoundSchedule::makespan)->makespan);
  }
  const std::string height =
      std::to_string(std::max<std::size_t>(400, 70 + kListRow * front.size()));
  std::string svg =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 900 " + height +
      "\" width=\"900\" height=\"" + height +
      "\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\">\n"
      "<style>.makespan{fill:#3763bd}.span{fill:none;stroke:#d9730d;stroke-width:1.6}"
      ".grid{stroke:#e3e3e6}.both{stroke:#999}</style>\n<rect width=\"900\" height=\"" +
      height + "\" fill=\"#fff\"/>\n" + legend(x.from, 24) + axes(x, y);
  for (std::size_t i = 0; i < front.size(); ++i) {
    const double row = y.to + 4 + static_cast<double>(kListRow * i);
    svg += point(x, y, front[i]) + numeral(x, y, front[i], shares_column(front, i, x), i + 1) +
           text_at(650, row, "end", std::to_string(i + 1)) +
           text_at(660, row, "start", picture::escaped(label(front[i])));
  }
  return svg + "</svg>\n";
}

}  // namespace millrace
