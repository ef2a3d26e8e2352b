// Bars, time axis and memory of one schedule; see svg_panel.hpp.
#include "plan/draw/svg_panel.hpp"

#include <algorithm>
#include <cmath>

namespace millrace::picture {

void SvgCanvas::text(double x, double y, const std::string& words, const std::string& attributes) {
  body_ +=
      "<text x='" + number(x) + "' y='" + number(y) + "' " + attributes + ">" + words + "</text>\n";
}

void SvgCanvas::rect(
    double x, double y, double width, double height, const std::string& attributes) {
  body_ += "<rect x='" + number(x, 7) + "' y='" + number(y) + "' width='" + number(width, 7) +
           "' height='" + number(height) + "' " + attributes + "/>\n";
}

void SvgCanvas::line(double x1, double y1, double x2, double y2, const std::string& colour) {
  body_ += "<line x1='" + number(x1) + "' y1='" + number(y1) + "' x2='" + number(x2) + "' y2='" +
           number(y2) + "' stroke='" + colour + "'/>\n";
}

void SvgCanvas::path(const std::string& steps, const std::string& colour, double width) {
  body_ += "<path d='" + steps + "' fill='none' stroke='" + colour + "' stroke-width='" +
           number(width) + "'/>\n";
}

void SvgCanvas::arrow(
    double x1, double y1, double x2, double y2, double bend, const std::string& kind) {
  const auto point = [](double x, double y) { return number(x, 7) + " " + number(y); };
  const double third = std::max(8.0, (x2 - x1) / 3), up = bend * 4 / 3;
  body_ += "<path class='" + kind + "' d='M" + point(x1, y1) + "C" + point(x1 + third, y1 - up) +
           " " + point(x2 - third, y2 - up) + " " + point(x2, y2) + "M" + point(x2 - 5, y2 - 3) +
           "L" + point(x2, y2) + "L" + point(x2 - 5, y2 + 3) +
           "' fill='none' stroke='#c2185b' stroke-opacity='0.75'/>\n";
}

std::string SvgCanvas::finished(double width, double height) const {
  const std::string wide = number(width);
  const std::string tall = number(std::ceil(height));
  return "<svg xmlns='http://www.w3.org/2000/svg' width='" + wide + "' height='" + tall +
         "' viewBox='0 0 " + wide + " " + tall +
         "' font-family='Helvetica, Arial, sans-serif' font-size='11'>\n<style>.title{font-size:"
         "14px;font-weight:bold}.m{text-anchor:middle}.e{text-anchor:end}.w{fill:#fff}"
         ".axis{fill:#555}</style>\n<rect width='100%' height='100%' fill='#fff'/>\n" +
         body_ + "</svg>\n";
}

double LegendFlow::take(double width) {
  if (x > left && x + width > right) {
    x = left;
    y += 18;
  }
  const double edge = x;
  x += width + 16;
  return edge;
}

double width_of(const std::string& words) {
  return 5.8 * static_cast<double>(words.size());
}

namespace {

constexpr double kRow = 26;
constexpr double kRowGap = 6;
constexpr double kSumHeight = 5;    // of a sum over copies, in the gap under its rank
constexpr double kCharacter = 6.8;  // of the labels' font

void time_axis(SvgCanvas& canvas, const PanelScale& scale, double bottom) {
  const double step = nice_step(scale.units, scale.plot / 60);
  canvas.line(kLeft, bottom, kLeft + scale.plot, bottom, "#888");
  for (int i = 0; i * step <= scale.units * (1 + 1e-9); ++i) {
    const double x = kLeft + i * step * scale.pixels_per_unit();
    canvas.line(x, bottom, x, bottom + 4, "#888");
    canvas.text(x, bottom + 16, number(i * step), "class='m axis'");
  }
  canvas.text(kLeft + scale.plot, bottom + 29, "time", "class='e axis'");
}

}  // namespace

SvgPanel::SvgPanel(const Program& program, const Timeline& timeline, const Cost& cost)
    : program_(program),
      boxes_(picture::boxes(program, timeline)),
      skips_(skip_arrows(program, timeline)),
      chunks_(most_chunks(program)),
      extent_(extent(timeline)),
      ticks_per_unit_(timeline.ticks_per_unit) {
  if (!cost.memory_forward.empty()) curves_ = memory_over_time(Graph(program), cost, timeline);
  if (cost.adds_gradients(program.shape)) sums_ = stage_sums(Graph(program), cost, timeline);
  for (const auto& curve : curves_)
    for (const MemoryStep& step : curve) highest_ = std::max(highest_, step.bytes);
}

double SvgPanel::units() const {
  return (extent_.end - extent_.start) / ticks_per_unit_;
}

double SvgPanel::pixels_per_unit_wanted() const {
  double shortest = extent_.end - extent_.start;
  std::size_t digits = 1;
  for (const auto& list : boxes_)
    for (const Box& box : list) {
      if (box.action->op == Op::ReduceGrad) continue;  // a wait, of any length
      shortest = std::min(shortest, box.time.end - box.time.start);
      digits = std::max(digits, unit_label(*box.action, program_.shape).size());
    }
  const double slot = std::max(20.0, kCharacter * static_cast<double>(digits) + 7);
  return shortest > 0 ? slot / shortest * ticks_per_unit_ : 0;
}

double SvgPanel::draw(SvgCanvas& canvas, const PanelScale& scale, double y) const {
  const double top = y;
  for (std::size_t rank = 0; rank < boxes_.size(); ++rank, y += kRow + kRowGap)
    row(canvas, scale, rank, y);
  for (const SkipArrow& arrow : skips_) skip(canvas, scale, arrow, top);
  time_axis(canvas, scale, y);
  y += 38;
  return highest_ > 0 ? memory(canvas, scale, y + 16) + 8 : y;
}

double SvgPanel::x_of(const PanelScale& scale, double time) const {
  return kLeft + (time - extent_.start) / ticks_per_unit_ * scale.pixels_per_unit();
}

void SvgPanel::row(SvgCanvas& canvas, const PanelScale& scale, std::size_t rank, double y) const {
  canvas.text(kLeft - 8, y + kRow / 2 + 4, "rank " + std::to_string(rank), "class='e'");
  canvas.rect(kLeft, y, x_of(scale, extent_.end) - kLeft, kRow, "fill='#e9e9ec'");
  for (const Box& one : boxes_[rank])
    if (!(has_sums() && one.action->op == Op::ReduceGrad)) box(canvas, scale, one, y);
  for (const StageSum& one : sums_) {
    if (one.rank.index() != rank) continue;
    sum(canvas, scale, one.time, y + kRow);
    if (one.given.start < one.given.end) sum(canvas, scale, one.given, y + kRow);
  }
}

/// Under the row of its rank, whose idle ground shows where no pass hides it.
void SvgPanel::sum(SvgCanvas& canvas,
                   const PanelScale& scale,
                   const Interval& time,
                   double y) const {
  const double x = x_of(scale, time.start);
  canvas.rect(x,
              y,
              x_of(scale, time.end) - x,
              kSumHeight,
              "fill='" + colour_of(Op::ReduceGrad).hex() + "' stroke='#fff' stroke-width='0.8'");
}

void SvgPanel::box(SvgCanvas& canvas, const PanelScale& scale, const Box& box, double y) const {
  const bool half = box.upper || box.lower;
  const double top = box.lower ? y + kRow / 2 : y;
  const double height = half ? kRow / 2 : kRow;
  const double x = x_of(scale, box.time.start);
  const double width = x_of(scale, box.time.end) - x;
  const Colour fill = shade(box.action->op, box.chunk, chunks_);
  canvas.rect(x, top, width, height, "fill='" + fill.hex() + "' stroke='#fff' stroke-width='0.8'");
  const std::string label = unit_label(*box.action, program_.shape);
  if (label.empty() || kCharacter * static_cast<double>(label.size()) + 2 > width) return;
  canvas.text(
      x + width / 2, top + height / 2 + 4, label, fill.light() ? "class='m'" : "class='m w'");
}

// From the end of a box to the start of another; inside a row over its other boxes.
void SvgPanel::skip(SvgCanvas& canvas,
                    const PanelScale& scale,
                    const SkipArrow& arrow,
                    double y) const {
  const bool inside = arrow.from.rank == arrow.to.rank;
  const auto middle = [&](const Place& place) {
    const double row = y + static_cast<double>(place.rank) * (kRow + kRowGap);
    return row + (inside ? 5 : kRow / 2);
  };
  canvas.arrow(x_of(scale, arrow.from.time.end),
               middle(arrow.from),
               x_of(scale, arrow.to.time.start),
               middle(arrow.to),
               inside ? kRowGap : 0,
               "skip");
}

// Curves that coincide stay visible: of few, each is narrower than the one below it.
double SvgPanel::curve_width(std::size_t rank) const {
  const std::size_t count = curves_.size();
  if (count < 2 || count > 8) return 1.6;
  return 1.4 + 2.8 * static_cast<double>(count - 1 - rank) / static_cast<double>(count - 1);
}

std::string SvgPanel::memory_steps(const PanelScale& scale,
                                   std::size_t rank,
                                   double bottom,
                                   double full) const {
  const auto y_of = [&](double value) { return bottom - value / full * scale.memory_height; };
  std::string steps = "M" + number(kLeft) + " " + number(y_of(0));
  const auto& curve = curves_[rank];
  for (std::size_t i = 0; i < curve.size(); ++i) {
    const bool passing = i + 1 < curve.size() && curve[i + 1].time == curve[i].time;
    if (passing) continue;
    const double time = std::max(curve[i].time * ticks_per_unit_, extent_.start);
    steps += "H" + number(x_of(scale, time), 7) + "V" + number(y_of(curve[i].bytes));
  }
  return steps + "H" + number(x_of(scale, extent_.end));
}

// Returns where it ends.
double SvgPanel::memory(SvgCanvas& canvas, const PanelScale& scale, double top) const {
  const double bottom = top + scale.memory_height;
  canvas.text(kLeft, top - 8, "memory held, per rank", "class='axis'");
  const double step = nice_step(scale.memory, 4);
  const double full = std::ceil(scale.memory / step - 1e-9) * step;
  for (int i = 0; i * step <= full * (1 + 1e-9); ++i) {
    const double y = bottom - i * step / full * scale.memory_height;
    canvas.line(kLeft, y, kLeft + scale.plot, y, i == 0 ? "#888" : "#ddd");
    canvas.text(kLeft - 8, y + 4, number(i * step), "class='e axis'");
  }
  for (std::size_t rank = 0; rank < curves_.size(); ++rank)
    canvas.path(memory_steps(scale, rank, bottom, full),
                rank_colour(rank, curves_.size()).hex(),
                curve_width(rank));
  return memory_legend(canvas, scale, bottom + 20);
}

// Returns its last base line.
double SvgPanel::memory_legend(SvgCanvas& canvas, const PanelScale& scale, double y) const {
  const std::size_t ranks = curves_.size();
  const std::size_t stride = std::max<std::size_t>(1, (ranks + 7) / 8);
  LegendFlow flow{.left = kLeft, .right = kLeft + scale.plot, .y = y};
  for (std::size_t rank = 0; rank < ranks; rank += stride) {
    const std::string words = "rank " + std::to_string(rank);
    const double x = flow.take(21 + width_of(words));
    canvas.rect(x, flow.y - 5, 16, 3, "fill='" + rank_colour(rank, ranks).hex() + "'");
    canvas.text(x + 21, flow.y, words);
  }
  return flow.y;
}

}  // namespace millrace::picture
