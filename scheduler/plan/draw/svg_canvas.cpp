// Elements as text; see svg_canvas.hpp.
#include "plan/draw/svg_canvas.hpp"

#include <algorithm>
#include <cmath>

#include "plan/draw/picture.hpp"

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

}  // namespace millrace::picture
