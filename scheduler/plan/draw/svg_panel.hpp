// SvgPanel: one schedule of a picture, its bars over time and the memory under them, on a scale
// that it shares with the picture's other schedules.
#pragma once

#include <string>
#include <vector>

#include "plan/draw/picture.hpp"

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

inline constexpr double kLeft = 66;   // of every plot
inline constexpr double kRight = 26;  // beside it

/// What all panels of a picture have in common.
struct PanelScale {
  double plot = 0;           ///< pixels of the longest panel
  double units = 0;          ///< its length
  double memory = 0;         ///< highest of all panels
  double memory_height = 0;  ///< pixels of a memory plot

  [[nodiscard]] double pixels_per_unit() const { return units > 0 ? plot / units : 0; }
};

/// Thread-safety: immutable, share freely. Does not own the program: its caller keeps it.
class SvgPanel {
 public:
  SvgPanel(const Program& program, const Timeline& timeline, const Cost& cost);

  [[nodiscard]] const std::vector<std::vector<Box>>& boxes() const { return boxes_; }
  [[nodiscard]] const Program& program() const { return program_; }
  [[nodiscard]] int chunks() const { return chunks_; }
  /// Whether it draws skip edges.
  [[nodiscard]] bool has_skips() const { return !skips_.empty(); }
  /// Whether it draws sums over copies of the pipeline.
  [[nodiscard]] bool has_sums() const { return !sums_.empty(); }
  /// Length of the timeline, in the user's units.
  [[nodiscard]] double units() const;
  /// Largest memory of any rank; 0 without a memory model.
  [[nodiscard]] double highest() const { return highest_; }
  /// Pixels of a unit at which the shortest action can carry its label.
  [[nodiscard]] double pixels_per_unit_wanted() const;

  /// Draws from `y` downwards; returns where it ends.
  double draw(SvgCanvas& canvas, const PanelScale& scale, double y) const;

 private:
  [[nodiscard]] double x_of(const PanelScale& scale, double time) const;
  void row(SvgCanvas& canvas, const PanelScale& scale, std::size_t rank, double y) const;
  void box(SvgCanvas& canvas, const PanelScale& scale, const Box& box, double y) const;
  void sum(SvgCanvas& canvas, const PanelScale& scale, const Interval& time, double y) const;
  void skip(SvgCanvas& canvas, const PanelScale& scale, const SkipArrow& arrow, double y) const;
  double memory(SvgCanvas& canvas, const PanelScale& scale, double top) const;
  double memory_legend(SvgCanvas& canvas, const PanelScale& scale, double y) const;
  [[nodiscard]] std::string memory_steps(const PanelScale& scale,
                                         std::size_t rank,
                                         double bottom,
                                         double full) const;
  [[nodiscard]] double curve_width(std::size_t rank) const;

  const Program& program_;
  std::vector<std::vector<Box>> boxes_;
  std::vector<SkipArrow> skips_;
  std::vector<StageSum> sums_;
  int chunks_;
  Interval extent_;
  double ticks_per_unit_;
  std::vector<std::vector<MemoryStep>> curves_;
  double highest_ = 0;
};

}  // namespace millrace::picture
