#include "training/watch/curve.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>

namespace millrace {
namespace {

constexpr double kWidth = 400, kHeight = 170;
constexpr double kLeft = 62, kRight = 12, kTop = 30, kBottom = 28;

std::string place(double x, double y) {
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
    places += (places.empty() ? "" : " ") + place(x, frame.y(value));
  }
  end_line();
  return lines + marks;
}

}  // namespace

std::string short_number(double number) {
  std::array<char, 32> text{};
  const double size = std::abs(number);
  const bool plain = number == 0 || (size >= 0.001 && size < 1e7);
  const int digits = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : size >= 1 ? 3 : 4;
  std::snprintf(text.data(), text.size(), plain ? "%.*f" : "%.*e", plain ? digits : 2, number);
  return text.data();
}

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
  return text + line_of(curve, points, frame) + "</svg>\n";
}

}  // namespace millrace
