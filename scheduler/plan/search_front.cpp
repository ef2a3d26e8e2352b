// The Pareto front of a search: filter, table, picture.
#include <algorithm>
#include <array>
#include <cstdio>
#include <tuple>

#include "millrace/scheduler/plan/search.hpp"

namespace millrace {

namespace {

bool beats(const Found& a, const Found& b) {
  return a.makespan <= b.makespan && a.span <= b.span && a.peak_memory <= b.peak_memory;
}

std::string label(const Found& found) {
  std::string text = found.generator;
  if (!found.parameters.empty()) text += " " + found.parameters;
  if (!found.refinement.empty()) text += " + " + found.refinement;
  return text;
}

std::string number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.6g", value);
  return text.data();
}

std::string padded(const std::string& text, std::size_t width) {
  return std::string(width > text.size() ? width - text.size() : 0, ' ') + text;
}

/// Maps values to the pixels of one axis.
struct Axis {
  double low = 0, high = 1, from = 0, to = 1;

  [[nodiscard]] std::string at(double value) const {
    const double share = high > low ? (value - low) / (high - low) : 0.5;
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%.1f", from + share * (to - from));
    return text.data();
  }
};

std::string text_at(const std::string& x,
                    const std::string& y,
                    const std::string& anchor,
                    const std::string& text) {
  return "<text x=\"" + x + "\" y=\"" + y + "\" text-anchor=\"" + anchor + "\">" + text +
         "</text>\n";
}

std::string dot(const Axis& x, const Axis& y, double memory, const Found& found, bool span) {
  const double value = span ? found.span : found.makespan;
  return "<circle cx=\"" + x.at(memory) + "\" cy=\"" + y.at(value) + "\" r=\"4\" class=\"" +
         (span ? "span" : "makespan") + "\"><title>" + label(found) + ": makespan " +
         number(found.makespan) + ", span " + number(found.span) + ", peak memory " +
         number(memory) + "</title></circle>\n";
}

std::string axes(const Axis& x, const Axis& y) {
  std::string svg = "<path d=\"M70 20V340H620\" fill=\"none\" stroke=\"#444\"/>\n";
  for (int i = 0; i <= 4; ++i) {
    const double memory = x.low + (x.high - x.low) * i / 4;
    const double time = y.low + (y.high - y.low) * i / 4;
    svg += text_at(x.at(memory), "358", "middle", number(memory));
    svg += text_at("64", y.at(time), "end", number(time));
  }
  svg += text_at("345", "382", "middle", "peak memory of a rank");
  svg += text_at("80", "14", "start", "time of a step: makespan (filled) and span (open)");
  return svg;
}

}  // namespace

std::vector<Found> pareto_front(std::vector<Found> found) {
  std::ranges::stable_sort(found, {}, [](const Found& one) {
    return std::tuple(one.peak_memory, one.makespan, one.span);
  });
  std::vector<Found> front;
  for (Found& candidate : found) {
    const auto beaten = [&](const Found& kept) { return beats(kept, candidate); };
    if (std::ranges::none_of(front, beaten)) front.push_back(std::move(candidate));
  }
  return front;
}

std::string front_table(const std::vector<Found>& front) {
  std::string table =
      padded("peak memory", 12) + padded("makespan", 14) + padded("span", 14) + "  schedule\n";
  for (const Found& found : front)
    table += padded(number(found.peak_memory), 12) + padded(number(found.makespan), 14) +
             padded(number(found.span), 14) + "  " + label(found) + "\n";
  return table;
}

std::string front_svg(const std::vector<Found>& front) {
  Axis x{.low = 0, .high = 1, .from = 90, .to = 600};
  Axis y{.low = 0, .high = 1, .from = 330, .to = 35};
  if (!front.empty()) {
    x.low = front.front().peak_memory;
    x.high = front.back().peak_memory;
    y.low = front.front().span;
    y.high = front.front().makespan;
  }
  for (const Found& found : front) {
    y.low = std::min(y.low, std::min(found.span, found.makespan));
    y.high = std::max(y.high, found.makespan);
  }
  std::string svg =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 640 400\" width=\"640\" "
      "height=\"400\" font-family=\"sans-serif\" font-size=\"11\">\n"
      "<style>.makespan{fill:#1f77b4}.span{fill:#fff;stroke:#d62728;stroke-width:2}</style>\n"
      "<rect width=\"640\" height=\"400\" fill=\"#fff\"/>\n";
  svg += axes(x, y);
  for (const Found& found : front) {
    svg += dot(x, y, found.peak_memory, found, false);
    svg += dot(x, y, found.peak_memory, found, true);
  }
  return svg + "</svg>\n";
}

}  // namespace millrace
