// Timelines as an SVG picture: a legend, and a panel per schedule, all on one scale.
#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "millrace/core/error.hpp"
#include "plan/draw/picture.hpp"
#include "plan/draw/svg_panel.hpp"

namespace millrace {

namespace {

using picture::kLeft;
using picture::LegendFlow;
using picture::PanelScale;
using picture::SvgCanvas;
using picture::SvgPanel;
using picture::width_of;

constexpr double kMemoryAlone = 120;
constexpr double kMemoryOfSeveral = 75;

PanelScale scale_of(const std::vector<SvgPanel>& panels) {
  constexpr double narrowest = 520;
  constexpr double widest = 2400;
  PanelScale scale;
  double per_unit = 0;
  for (const SvgPanel& panel : panels) {
    scale.units = std::max(scale.units, panel.units());
    scale.memory = std::max(scale.memory, panel.highest());
    per_unit = std::max(per_unit, panel.pixels_per_unit_wanted());
  }
  scale.plot = std::clamp(scale.units * per_unit, narrowest, widest);
  scale.memory_height = panels.size() == 1 ? kMemoryAlone : kMemoryOfSeveral;
  return scale;
}

void swatch(SvgCanvas& canvas,
            LegendFlow& flow,
            const std::string& fill,
            const std::string& words) {
  const double x = flow.take(19 + width_of(words));
  canvas.rect(x, flow.y, 14, 12, "rx='2' fill='" + fill + "'");
  canvas.text(x + 19, flow.y + 10, words);
}

void shades(SvgCanvas& canvas, LegendFlow& flow, const std::string& noun, int chunks) {
  const std::string words = noun + " 0 to " + std::to_string(chunks - 1);
  const int shown = std::min(chunks, 8);
  double x = flow.take(16.0 * shown + 3 + width_of(words));
  for (int chunk = 0; chunk < shown; ++chunk, x += 16)
    canvas.rect(x,
                flow.y,
                14,
                12,
                "rx='2' fill='" + picture::shade(Op::Forward, chunk, chunks).hex() + "'");
  canvas.text(x + 3, flow.y + 10, words);
}

// Returns the top of its last line.
double legend(SvgCanvas& canvas,
              const PanelScale& scale,
              const std::vector<SvgPanel>& panels,
              double y) {
  static constexpr std::array<const char*, kOps> words = {"forward",
                                                          "backward",
                                                          "backward-input",
                                                          "backward-weight",
                                                          "recompute",
                                                          "send",
                                                          "receive",
                                                          "send",
                                                          "receive",
                                                          "gradient reduction",
                                                          "optimizer step"};
  std::array<bool, kOps> seen{};
  std::set<std::pair<std::string, int>> several;
  for (const SvgPanel& panel : panels) {
    for (const auto& list : panel.boxes())
      for (const picture::Box& box : list) seen[static_cast<std::size_t>(box.action->op)] = true;
    seen[static_cast<std::size_t>(Op::ReduceGrad)] |= panel.has_sums();
    const bool copies = panel.program().shape.replicas() > 1;
    if (panel.chunks() > 1) several.emplace(copies ? "replica" : "chunk", panel.chunks());
  }
  LegendFlow flow{.left = kLeft, .right = kLeft + scale.plot, .y = y};
  for (std::size_t i = 0; i < seen.size(); ++i)
    if (seen[i]) swatch(canvas, flow, picture::colour_of(static_cast<Op>(i)).hex(), words[i]);
  swatch(canvas, flow, "#e9e9ec", "idle");
  for (const auto& [noun, chunks] : several) shades(canvas, flow, noun, chunks);
  if (std::ranges::any_of(panels, &SvgPanel::has_skips)) {
    const double x = flow.take(23 + width_of("skip edge"));
    canvas.arrow(x, flow.y + 6, x + 18, flow.y + 6, 0, "legend");
    canvas.text(x + 23, flow.y + 10, "skip edge");
  }
  return flow.y;
}

// Draws a title and returns where the next thing goes.
double headline(SvgCanvas& canvas, const std::string& title, double y) {
  if (title.empty()) return y;
  canvas.text(kLeft, y + 8, picture::escaped(title), "class='title'");
  return y + 28;
}

}  // namespace

std::string draw_svg(const Program& program,
                     const Timeline& timeline,
                     const Cost& cost,
                     const std::string& title) {
  picture::require_drawable(program.size());
  const std::vector<SvgPanel> panels{SvgPanel(program, timeline, cost)};
  const PanelScale scale = scale_of(panels);
  SvgCanvas canvas;
  double y = headline(canvas, title, 14);
  y = legend(canvas, scale, panels, y) + 30;
  y = panels.front().draw(canvas, scale, y);
  return canvas.finished(kLeft + scale.plot + picture::kRight, y);
}

std::string draw_svg(const std::vector<Panel>& schedules) {
  require(!schedules.empty(), "a picture of several schedules needs at least one");
  std::size_t actions = 0;
  for (const Panel& schedule : schedules) actions += schedule.drawing.program.size();
  picture::require_drawable(actions);
  std::vector<SvgPanel> panels;
  for (const auto& [drawing, cost, title] : schedules)
    panels.emplace_back(drawing.program, drawing.timeline, cost);
  const PanelScale scale = scale_of(panels);
  SvgCanvas canvas;
  double y = legend(canvas, scale, panels, 14) + 34;
  for (std::size_t i = 0; i < panels.size(); ++i)
    y = panels[i].draw(canvas, scale, headline(canvas, schedules[i].title, y)) + 22;
  return canvas.finished(kLeft + scale.plot + picture::kRight, y);
}

}  // namespace millrace
