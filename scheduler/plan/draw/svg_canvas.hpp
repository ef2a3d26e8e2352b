// SvgCanvas: the elements of an SVG picture as text, and where the entries of a legend go. It knows
// nothing of schedules.
#pragma once

#include <string>

namespace millrace::picture {

/// Thread-safety: externally synchronised.
class SvgCanvas {
 public:
  void text(double x, double y, const std::string& words, const std::string& attributes = "");
  void rect(double x, double y, double width, double height, const std::string& attributes);
  void line(double x1, double y1, double x2, double y2, const std::string& colour);
  /// An open line through `steps`, the commands of a path.
  void path(const std::string& steps, const std::string& colour, double width);
  /// A thin arrow of a class of its own; `bend` pixels above the straight line in its middle.
  void arrow(double x1, double y1, double x2, double y2, double bend, const std::string& kind);

  /// The picture, `width` by `height` pixels on white.
  [[nodiscard]] std::string finished(double width, double height) const;

 private:
  std::string body_;
};

/// Where the next entry of a legend goes: beside the last one, or below where it would stick out.
struct LegendFlow {
  double left = 0;
  double right = 0;
  double y = 0;
  double x = left;

  /// Takes the room of an entry; its left edge is returned.
  double take(double width);
};

/// Pixels of a legend's words, in the canvas's font.
[[nodiscard]] double width_of(const std::string& words);

}  // namespace millrace::picture
