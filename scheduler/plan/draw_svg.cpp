// The timeline as an SVG picture: bars, legend, axis, memory.
#include <algorithm>
#include <array>
#include <cmath>

#include "plan/palette.hpp"
#include "plan/picture.hpp"

namespace millrace {

namespace {

using picture::Box;
using picture::nice_step;
using picture::number;

constexpr double kLeft = 66;
constexpr double kRight = 26;
constexpr double kRow = 26;
constexpr double kRowGap = 6;
constexpr double kCharacter = 6.8;  // of the labels' font
constexpr double kMemoryHeight = 120;

class SvgPicture {
 public:
  SvgPicture(const Program& program, const Timeline& timeline, const Cost& cost)
      : program_(program),
        all_(picture::boxes(program, timeline)),
        chunks_(picture::most_chunks(program)),
        extent_(picture::extent(timeline)),
        ticks_per_unit_(timeline.ticks_per_unit) {
    if (!cost.memory_forward.empty()) curves_ = memory_over_time(Graph(program), cost, timeline);
    for (const auto& curve : curves_)
      for (const MemoryStep& step : curve) highest_ = std::max(highest_, step.bytes);
    set_scale();
  }

  std::string draw(const std::string& title) {
    double y = 14;
    if (!title.empty()) {
      text(kLeft, y + 8, picture::escaped(title), "class='title'");
      y += 28;
    }
    y = legend(y) + 30;
    for (std::size_t rank = 0; rank < all_.size(); ++rank, y += kRow + kRowGap) row(rank, y);
    time_axis(y);
    y += 38;
    if (highest_ > 0) {
      y = memory(y + 16) + 8;
    }
    return head(y) + body_ + "</svg>\n";
  }

 private:
  void set_scale() {
    const double length = extent_.end - extent_.start;
    double shortest = length;
    std::size_t digits = 1;
    for (const auto& list : all_)
      for (const Box& box : list) {
        shortest = std::min(shortest, box.time.end - box.time.start);
        digits = std::max(digits, picture::unit_label(*box.action, program_.shape).size());
      }
    const double slot = std::max(20.0, kCharacter * static_cast<double>(digits) + 7);
    constexpr double narrowest = 520;
    constexpr double widest = 2400;
    const double natural = shortest > 0 ? length / shortest * slot : narrowest;
    plot_ = std::clamp(natural, narrowest, widest);
    pixels_per_tick_ = length > 0 ? plot_ / length : 0;
  }

  [[nodiscard]] double x_of(double time) const {
    return kLeft + (time - extent_.start) * pixels_per_tick_;
  }

  [[nodiscard]] std::string head(double height) const {
    const std::string width = number(kLeft + plot_ + kRight);
    const std::string tall = number(std::ceil(height));
    return "<svg xmlns='http://www.w3.org/2000/svg' width='" + width + "' height='" + tall +
           "' viewBox='0 0 " + width + " " + tall +
           "' font-family='Helvetica, Arial, sans-serif' font-size='11'>\n<style>.title{font-size:"
           "14px;font-weight:bold}.m{text-anchor:middle}.e{text-anchor:end}.w{fill:#fff}"
           ".axis{fill:#555}</style>\n<rect width='100%' height='100%' fill='#fff'/>\n";
  }

  void text(double x, double y, const std::string& words, const std::string& attributes = "") {
    body_ += "<text x='" + number(x) + "' y='" + number(y) + "' " + attributes + ">" + words +
             "</text>\n";
  }

  void rect(double x, double y, double width, double height, const std::string& attributes) {
    body_ += "<rect x='" + number(x, 7) + "' y='" + number(y) + "' width='" + number(width, 7) +
             "' height='" + number(height) + "' " + attributes + "/>\n";
  }

  void line(double x1, double y1, double x2, double y2, const std::string& colour) {
    body_ += "<line x1='" + number(x1) + "' y1='" + number(y1) + "' x2='" + number(x2) + "' y2='" +
             number(y2) + "' stroke='" + colour + "'/>\n";
  }

  // Where the next entry of a legend goes: beside the last one, or below where it would stick out.
  struct Flow {
    double x = kLeft;
    double y = 0;
    double right = 0;

    /// Takes the room of an entry; its left edge is returned.
    double take(double width) {
      if (x > kLeft && x + width > right) {
        x = kLeft;
        y += 18;
      }
      const double left = x;
      x += width + 16;
      return left;
    }
  };

  static double width_of(const std::string& words) {
    return 5.8 * static_cast<double>(words.size());
  }

  void swatch(Flow& flow, const std::string& fill, const std::string& words) {
    const double x = flow.take(19 + width_of(words));
    rect(x, flow.y, 14, 12, "rx='2' fill='" + fill + "'");
    text(x + 19, flow.y + 10, words);
  }

  // Returns the top of its last line.
  double legend(double y) {
    std::array<bool, kOps> seen{};
    for (const auto& list : all_)
      for (const Box& box : list) seen[static_cast<std::size_t>(box.action->op)] = true;
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
    Flow flow{.y = y, .right = kLeft + plot_};
    for (std::size_t i = 0; i < seen.size(); ++i)
      if (seen[i]) swatch(flow, picture::colour_of(static_cast<Op>(i)).hex(), words[i]);
    swatch(flow, "#e9e9ec", "idle");
    if (chunks_ > 1) shades(flow);
    return flow.y;
  }

  void shades(Flow& flow) {
    const std::string noun = program_.shape.replicas() > 1 ? "replica" : "chunk";
    const std::string words = noun + " 0 to " + std::to_string(chunks_ - 1);
    const int shown = std::min(chunks_, 8);
    double x = flow.take(16.0 * shown + 3 + width_of(words));
    for (int chunk = 0; chunk < shown; ++chunk, x += 16)
      rect(x,
           flow.y,
           14,
           12,
           "rx='2' fill='" + picture::shade(Op::Forward, chunk, chunks_).hex() + "'");
    text(x + 3, flow.y + 10, words);
  }

  void row(std::size_t rank, double y) {
    text(kLeft - 8, y + kRow / 2 + 4, "rank " + std::to_string(rank), "class='e'");
    rect(kLeft, y, plot_, kRow, "fill='#e9e9ec'");
    for (const Box& box : all_[rank]) draw_box(box, y);
  }

  void draw_box(const Box& box, double y) {
    const bool half = box.upper || box.lower;
    const double top = box.lower ? y + kRow / 2 : y;
    const double height = half ? kRow / 2 : kRow;
    const double x = x_of(box.time.start);
    const double width = x_of(box.time.end) - x;
    const picture::Colour fill = picture::shade(box.action->op, box.chunk, chunks_);
    rect(x, top, width, height, "fill='" + fill.hex() + "' stroke='#fff' stroke-width='0.8'");
    const std::string label = picture::unit_label(*box.action, program_.shape);
    if (label.empty() || kCharacter * static_cast<double>(label.size()) + 2 > width) return;
    text(x + width / 2, top + height / 2 + 4, label, fill.light() ? "class='m'" : "class='m w'");
  }

  void time_axis(double bottom) {
    const double units = (extent_.end - extent_.start) / ticks_per_unit_;
    const double step = nice_step(units, plot_ / 60);
    line(kLeft, bottom, kLeft + plot_, bottom, "#888");
    for (int i = 0; i * step <= units * (1 + 1e-9); ++i) {
      const double x = x_of(extent_.start + i * step * ticks_per_unit_);
      line(x, bottom, x, bottom + 4, "#888");
      text(x, bottom + 16, number(i * step), "class='m axis'");
    }
    text(kLeft + plot_, bottom + 29, "time", "class='e axis'");
  }

  // Curves that coincide stay visible: of few, each is narrower than the one below it.
  [[nodiscard]] double curve_width(std::size_t rank) const {
    const std::size_t count = curves_.size();
    if (count < 2 || count > 8) return 1.6;
    return 1.4 + 2.8 * static_cast<double>(count - 1 - rank) / static_cast<double>(count - 1);
  }

  // Returns where it ends.
  double memory(double top) {
    const double bottom = top + kMemoryHeight;
    text(kLeft, top - 8, "memory held, per rank", "class='axis'");
    const double step = nice_step(highest_, 4);
    const double full = std::ceil(highest_ / step - 1e-9) * step;
    const auto y_of = [&](double value) { return bottom - value / full * kMemoryHeight; };
    for (int i = 0; i * step <= full * (1 + 1e-9); ++i) {
      line(kLeft, y_of(i * step), kLeft + plot_, y_of(i * step), i == 0 ? "#888" : "#ddd");
      text(kLeft - 8, y_of(i * step) + 4, number(i * step), "class='e axis'");
    }
    for (std::size_t rank = 0; rank < curves_.size(); ++rank) {
      const std::string colour = picture::rank_colour(rank, curves_.size()).hex();
      std::string path = "M" + number(kLeft) + " " + number(y_of(0));
      const auto& curve = curves_[rank];
      for (std::size_t i = 0; i < curve.size(); ++i) {
        const bool passing = i + 1 < curve.size() && curve[i + 1].time == curve[i].time;
        if (passing) continue;
        const double time = std::max(curve[i].time * ticks_per_unit_, extent_.start);
        path += "H" + number(x_of(time), 7) + "V" + number(y_of(curve[i].bytes));
      }
      body_ += "<path d='" + path + "H" + number(kLeft + plot_) + "' fill='none' stroke='" +
               colour + "' stroke-width='" + number(curve_width(rank)) + "'/>\n";
    }
    return memory_legend(bottom + 20);
  }

  // Returns its last base line.
  double memory_legend(double y) {
    const std::size_t ranks = curves_.size();
    const std::size_t stride = std::max<std::size_t>(1, (ranks + 7) / 8);
    Flow flow{.y = y, .right = kLeft + plot_};
    for (std::size_t rank = 0; rank < ranks; rank += stride) {
      const std::string words = "rank " + std::to_string(rank);
      const double x = flow.take(21 + width_of(words));
      rect(x, flow.y - 5, 16, 3, "fill='" + picture::rank_colour(rank, ranks).hex() + "'");
      text(x + 21, flow.y, words);
    }
    return flow.y;
  }

  const Program& program_;
  std::vector<std::vector<Box>> all_;
  int chunks_;
  Interval extent_;
  double ticks_per_unit_;
  std::vector<std::vector<MemoryStep>> curves_;
  double highest_ = 0;
  double plot_ = 0;
  double pixels_per_tick_ = 0;
  std::string body_;
};

}  // namespace

std::string draw_svg(const Program& program,
                     const Timeline& timeline,
                     const Cost& cost,
                     const std::string& title) {
  picture::require_drawable(program.size());
  return SvgPicture(program, timeline, cost).draw(title);
}

}  // namespace millrace
