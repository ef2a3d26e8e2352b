// The timeline as text for a terminal.
#include <algorithm>
#include <cmath>

#include "plan/draw/picture.hpp"

namespace millrace {

namespace {

using picture::Box;

// Blue, green, cyan, yellow, grey grounds, as in the SVG.
const char* colour_of(Op op) {
  switch (op) {
    case Op::Forward:
      return "\x1b[44;97m";
    case Op::Backward:
      return "\x1b[42;30m";
    case Op::BackwardInput:
      return "\x1b[46;30m";
    case Op::BackwardWeight:
      return "\x1b[43;30m";
    case Op::Recompute:
    case Op::SendForward:
    case Op::RecvForward:
    case Op::SendBackward:
    case Op::RecvBackward:
    case Op::ReduceGrad:
    case Op::OptimizerStep:
      return "\x1b[100;97m";
  }
  return "";
}

// Forwards have no letter: they are the plain numbers of the picture.
std::string label_of(const Box& box, const Shape& shape, bool chunked) {
  const Op op = box.action->op;
  if (op == Op::ReduceGrad) return "+";  // R is a recompute
  std::string label = op == Op::Forward ? "" : std::string(1, letters(op)[0]);
  if (chunked && has_unit(op)) label += static_cast<char>('a' + box.chunk % 26);
  return label + picture::unit_label(*box.action, shape);
}

struct Scale {
  double start = 0;
  double characters_per_tick = 1;
  std::size_t slot = 2;   // characters of the shortest op
  std::size_t width = 0;  // characters of the picture

  [[nodiscard]] std::size_t at(double time) const {
    return static_cast<std::size_t>(std::lround((time - start) * characters_per_tick));
  }
};

Scale scale_of(const std::vector<std::vector<Box>>& all,
               const Shape& shape,
               bool chunked,
               const Interval& extent,
               std::size_t room) {
  double shortest = extent.end - extent.start;
  std::size_t longest_label = 1;
  for (const auto& list : all)
    for (const Box& box : list) {
      if (box.action->op == Op::ReduceGrad) continue;  // a wait, of any length
      shortest = std::min(shortest, box.time.end - box.time.start);
      const std::size_t sign = box.action->op == Op::Forward ? 1 : 0;  // room for a blank
      longest_label = std::max(longest_label, label_of(box, shape, chunked).size() + sign);
    }
  Scale scale;
  scale.start = extent.start;
  scale.slot = longest_label;
  constexpr double most = 1e6;  // characters, whatever the costs
  const double natural =
      shortest > 0 ? (extent.end - extent.start) / shortest * static_cast<double>(scale.slot) : 0;
  const double width = std::min(natural, room > 0 ? static_cast<double>(room) : most);
  scale.width = static_cast<std::size_t>(std::lround(width));
  if (extent.end > extent.start) scale.characters_per_tick = width / (extent.end - extent.start);
  return scale;
}

std::string idle(std::size_t from, std::size_t to, std::size_t slot) {
  std::string text;
  for (std::size_t i = from; i < to; ++i) text += i % slot == slot - 1 ? '.' : ' ';
  return text;
}

// The label, right-aligned in its first slot, then = to the end.
std::string filled(std::string label, std::size_t length, std::size_t slot, bool forward) {
  if (forward && label.size() < slot) label.insert(0, slot - label.size(), ' ');
  if (label.size() < slot && length >= slot) label.resize(slot, forward ? ' ' : '=');
  label.resize(length, '=');
  return label;
}

}  // namespace

std::string draw_ascii(const Program& program,
                       const Timeline& timeline,
                       const AsciiOptions& options) {
  const auto all = picture::boxes(program, timeline);
  const bool chunked = picture::most_chunks(program) > 1;
  const std::size_t digits = std::to_string(program.ranks.size() - 1).size();
  const std::size_t margin = 7 + digits;  // "rank 0 |"
  const auto columns = static_cast<std::size_t>(std::max(options.columns, 0));
  const std::size_t room = columns > margin ? columns - margin : columns > 0 ? 1 : 0;
  const Scale scale = scale_of(all, program.shape, chunked, picture::extent(timeline), room);

  std::string text;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const std::string name = std::to_string(rank);
    text += "rank " + std::string(digits - name.size(), ' ') + name + " |";
    std::size_t at = 0;
    for (const Box& box : all[rank]) {
      if (box.lower) continue;  // the pair is drawn as its first half
      const std::size_t from = std::max(at, scale.at(box.time.start));
      const std::size_t to = std::max(from, scale.at(box.time.end));
      text += idle(at, from, scale.slot);
      const std::string body = filled(label_of(box, program.shape, chunked),
                                      to - from,
                                      scale.slot,
                                      box.action->op == Op::Forward);
      text += options.colour ? colour_of(box.action->op) + body + "\x1b[0m" : body;
      at = to;
    }
    text += idle(at, scale.width, scale.slot) + "\n";
  }
  return text;
}

}  // namespace millrace
