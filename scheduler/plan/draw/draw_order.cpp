// The order of a program as text, without times: for programs that are wrong, with the faults in
// brackets.
#include <algorithm>
#include <set>

#include "millrace/scheduler/plan/draw.hpp"

namespace millrace {

namespace {

constexpr std::size_t kMostRanks = 16;    // shown without leaving some out
constexpr std::size_t kMostColumns = 16;  // shown when nothing is marked

/// Indices of a line in ascending order; where one does not follow the one before, dots are shown.
using Chosen = std::set<std::size_t>;

void add_around(Chosen& chosen, std::size_t middle, std::size_t around, std::size_t end) {
  const std::size_t from = middle - std::min(around, middle);
  for (std::size_t i = from; i < std::min(end, middle + around + 1); ++i) chosen.insert(i);
}

Chosen chosen_columns(const Program& program,
                      const std::vector<ActionPlace>& marks,
                      std::size_t around) {
  std::size_t longest = 0;
  for (const auto& list : program.ranks) longest = std::max(longest, list.size());
  for (const ActionPlace& mark : marks) longest = std::max(longest, mark.position + 1);
  Chosen columns;
  for (const ActionPlace& mark : marks) add_around(columns, mark.position, around, longest);
  if (marks.empty() || longest <= kMostColumns) add_around(columns, 0, kMostColumns - 1, longest);
  return columns;
}

Chosen chosen_ranks(const Program& program, const std::vector<ActionPlace>& marks) {
  Chosen ranks;
  const std::size_t count = program.ranks.size();
  if (count <= kMostRanks || marks.empty()) add_around(ranks, 0, kMostRanks - 1, count);
  for (const ActionPlace& mark : marks) add_around(ranks, mark.rank.index(), 1, count);
  return ranks;
}

std::string action_text(const Program& program, std::size_t rank, std::size_t position) {
  const auto& list = program.ranks[rank];
  if (position >= list.size()) return "";
  return to_string(list[position]) + (list[position].with_next ? "+" : "");
}

/// "  0F0 " or " [0F0]": every cell as wide as the widest, text in the middle.
std::string cell(std::string text, bool marked, std::size_t width) {
  text = marked ? "[" + (text.empty() ? "-" : text) + "]" : " " + text + " ";
  const std::size_t room = width + 2 - std::min(text.size(), width + 2);
  return std::string(room / 2 + 1, ' ') + text + std::string(room - room / 2, ' ');
}

/// The grid's lines; all cells of a column are made by `text_of(column)`.
template <class TextOf>
std::string line(const std::string& head, const Chosen& columns, TextOf&& text_of) {
  std::string text = head + " |";
  std::size_t next = 0;
  for (const std::size_t column : columns) {
    if (column != next) text += " ...";
    text += text_of(column);
    next = column + 1;
  }
  text.erase(text.find_last_not_of(' ') + 1);
  return text + "\n";
}

}  // namespace

std::string draw_order(const Program& program, const std::vector<ActionPlace>& marks, int around) {
  const Chosen columns =
      chosen_columns(program, marks, static_cast<std::size_t>(std::max(around, 0)));
  const Chosen ranks = chosen_ranks(program, marks);
  if (ranks.empty() || columns.empty()) return "";
  std::size_t width = std::to_string(*columns.rbegin()).size();
  for (const std::size_t rank : ranks)
    for (const std::size_t column : columns)
      width = std::max(width, action_text(program, rank, column).size());
  const std::size_t digits = std::to_string(*ranks.rbegin()).size();

  std::string text = line("action" + std::string(digits - 1, ' '), columns, [&](std::size_t c) {
    return cell(std::to_string(c), false, width);
  });
  std::size_t next = 0;
  for (const std::size_t rank : ranks) {
    if (rank != next) text += "...\n";
    next = rank + 1;
    const std::string name = std::to_string(rank);
    const std::string head = "rank " + std::string(digits - name.size(), ' ') + name;
    text += line(head, columns, [&](std::size_t c) {
      const ActionPlace here{Rank{static_cast<std::int32_t>(rank)}, c};
      const bool marked = std::find(marks.begin(), marks.end(), here) != marks.end();
      return cell(action_text(program, rank, c), marked, width);
    });
  }
  return next == program.ranks.size() ? text : text + "...\n";
}

}  // namespace millrace
