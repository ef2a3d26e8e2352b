// Colours; see palette.hpp.
#include "plan/draw/palette.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

namespace millrace::picture {

namespace {

int mixed(int from, int to, double share) {
  return static_cast<int>(std::lround(from + (to - from) * share));
}

Colour mixed(Colour from, Colour to, double share) {
  return {mixed(from.red, to.red, share),
          mixed(from.green, to.green, share),
          mixed(from.blue, to.blue, share)};
}

}  // namespace

std::string Colour::hex() const {
  std::string text = "#";
  for (const int part : {red, green, blue}) {
    const auto value = static_cast<unsigned>(part);
    text += "0123456789abcdef"[value >> 4U];
    text += "0123456789abcdef"[value & 15U];
  }
  return text;
}

bool Colour::light() const {
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140;
}

Colour Colour::lightened(double share) const {
  return mixed(*this, {255, 255, 255}, share);
}

Colour colour_of(Op op) {
  switch (op) {
    case Op::Forward:
      return {54, 99, 187};
    case Op::Backward:
      return {30, 141, 98};
    case Op::BackwardInput:
      return {34, 158, 176};
    case Op::BackwardWeight:
      return {229, 152, 37};
    case Op::Recompute:
      return {138, 106, 188};
    case Op::SendForward:
    case Op::RecvForward:
    case Op::SendBackward:
    case Op::RecvBackward:
      return {176, 176, 176};
    case Op::ReduceGrad:
      return {196, 78, 82};
    case Op::OptimizerStep:
      return {90, 90, 90};
  }
  return {};
}

Colour shade(Op op, int chunk, int chunks) {
  constexpr double lightest = 0.62;
  if (chunks <= 1) return colour_of(op);
  return colour_of(op).lightened(lightest * chunk / (chunks - 1));
}

Colour rank_colour(std::size_t rank, std::size_t ranks) {
  constexpr std::array<Colour, 4> ramp = {
      Colour{84, 48, 140}, {40, 110, 170}, {50, 165, 105}, {225, 130, 30}};
  if (ranks <= 1) return ramp[0];
  const double at = static_cast<double>(rank) / static_cast<double>(ranks - 1) * 3;
  const auto index = std::min(static_cast<std::size_t>(at), std::size_t{2});
  return mixed(ramp[index], ramp[index + 1], at - static_cast<double>(index));
}

}  // namespace millrace::picture
