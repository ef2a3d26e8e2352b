// What the pictures share: the box of an action, its label and its chunk on the rank.
#pragma once

#include <string>
#include <vector>

#include "millrace/scheduler/plan/draw.hpp"
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

/// One action with a length, as drawn.
struct Box {
  const Action* action = nullptr;
  std::size_t position = 0;
  Interval time;
  int chunk = 0;       ///< which of the rank's stages, in (replica, stage) order
  bool upper = false;  ///< first half of a pair that runs at once: drawn in the upper half
  bool lower = false;  ///< second half of such a pair
};

/// Boxes of every rank: actions that take time, in program order.
[[nodiscard]] std::vector<std::vector<Box>> boxes(const Program& program, const Timeline& timeline);

/// Where an action is drawn.
struct Place {
  std::size_t rank = 0, position = 0;
  Interval time;
};

/// What a skip edge carries for one unit: from the forward that makes it to the one that uses it.
struct SkipArrow {
  Place from, to;
};

/// Of every edge that does not lead to the next stage, for each unit whose two forwards are there,
/// in the order of the lists; none in a chain. Cost: O(actions + arrows).
[[nodiscard]] std::vector<SkipArrow> skip_arrows(const Program& program, const Timeline& timeline);

/// Throws InvalidArgument when there are more actions than a picture can show.
void require_drawable(std::size_t actions);

/// Most stages (of all replicas) that one rank holds.
[[nodiscard]] int most_chunks(const Program& program);

/// Earliest start and latest end over all actions.
[[nodiscard]] Interval extent(const Timeline& timeline);

/// "3", with slices "3.1".
[[nodiscard]] std::string unit_label(const Action& action, const Shape& shape);

/// Shortest decimal text of a number with at most `digits` significant digits: "4.5", "33".
[[nodiscard]] std::string number(double value, int digits = 6);

/// 1, 2 or 5 times a power of ten: the distance of an axis's marks, at most `most_steps` of them.
[[nodiscard]] double nice_step(double extent, double most_steps);

/// Escapes <, >, & and quotes for XML and HTML.
[[nodiscard]] std::string escaped(const std::string& text);

}  // namespace millrace::picture
