// One curve of the page of a run, as SVG.
#pragma once

#include <string>
#include <vector>

#include "millrace/training/run_page.hpp"

namespace millrace {

struct Curve {
  std::string name;
  double HistoryPoint::*value;
  double factor = 1;      ///< what is drawn is the value times this
  std::string unit = {};  ///< behind numbers
};

/// Line over steps, with its smallest, largest and last value; broken where a value is not finite,
/// and marked below where steps were skipped. Cost: O(points).
[[nodiscard]] std::string draw_curve(const Curve& curve, const std::vector<HistoryPoint>& points);

/// A number for people: at most 4 digits, "1.50e-05" where that is shorter.
[[nodiscard]] std::string short_number(double number);

}  // namespace millrace
