// The colours of the pictures: one hue per op, lighter with every chunk or replica, distinguishable
// with the common colour deficiencies and in grey.
#pragma once

#include <string>

#include "millrace/scheduler/plan/program.hpp"

namespace millrace::picture {

struct Colour {
  int red = 0, green = 0, blue = 0;

  /// "#rrggbb".
  [[nodiscard]] std::string hex() const;
  /// Whether black text reads better on it than white.
  [[nodiscard]] bool light() const;
  /// `share` of white mixed in.
  [[nodiscard]] Colour lightened(double share) const;
};

[[nodiscard]] Colour colour_of(Op op);

/// Ground of a box: the op's hue, lighter for the later of `chunks` chunks.
[[nodiscard]] Colour shade(Op op, int chunk, int chunks);

/// Line of one of `ranks` ranks: a ramp from violet over green to orange.
[[nodiscard]] Colour rank_colour(std::size_t rank, std::size_t ranks);

}  // namespace millrace::picture
