// The stages that recompute: from a program, to text and back.
#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "plan/model/validate.hpp"

namespace millrace {

namespace {

constexpr std::string_view kStages = "stages:";

[[noreturn]] void refuse(std::string_view text, const std::string& why) {
  throw InvalidArgument("recompute '" + std::string(text) + "': " + why +
                        "; allowed is none, all or stages:LIST (numbers and ranges A-B)");
}

std::optional<int> whole_number(std::string_view text) {
  int number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || rest != end || number < 0) return std::nullopt;
  return number;
}

/// "3" or "5-7".
std::pair<int, int> range_in(std::string_view text, std::string_view word) {
  const std::size_t dash = word.find('-');
  const auto first = whole_number(word.substr(0, dash));
  const auto last = dash == std::string_view::npos ? first : whole_number(word.substr(dash + 1));
  if (!first || !last) refuse(text, "'" + std::string(word) + "' is not a stage");
  if (*first > *last) refuse(text, "the range '" + std::string(word) + "' runs downwards");
  return {*first, *last};
}

}  // namespace

std::vector<bool> recomputed_stages(const Program& program) {
  plan::validate(program);
  std::vector<bool> stages(static_cast<std::size_t>(program.shape.stages()), false);
  for (const auto& list : program.ranks)
    for (const Action& action : list)
      if (action.op == Op::Recompute) stages[action.stage.index()] = true;
  return stages;
}

std::string recompute_text(const std::vector<bool>& of_stage) {
  const auto count = std::ranges::count(of_stage, true);
  if (count == 0) return "none";
  if (count == std::ssize(of_stage)) return "all";
  std::string text;
  for (std::size_t first = 0; first < of_stage.size(); ++first) {
    if (!of_stage[first]) continue;
    std::size_t last = first;
    while (last + 1 < of_stage.size() && of_stage[last + 1]) ++last;
    text += (text.empty() ? "" : ",") + std::to_string(first);
    if (last > first) text += "-" + std::to_string(last);
    first = last;
  }
  return std::string(kStages) + text;
}

std::string describe_recompute(const Program& program) {
  const std::vector<bool> stages = recomputed_stages(program);
  std::ptrdiff_t again = 0, all = 0;
  for (const auto& list : program.ranks)
    for (const Action& action : list) {
      again += action.op == Op::Recompute ? 1 : 0;
      all += action.op == Op::Forward && stages[action.stage.index()] ? 1 : 0;
    }
  return recompute_text(stages) + (again < all ? " in part" : "");
}

std::vector<bool> parse_recompute_stages(std::string_view text, int stages) {
  std::vector<bool> chosen(static_cast<std::size_t>(std::max(0, stages)), text == "all");
  if (text == "all" || text == "none") return chosen;
  if (!text.starts_with(kStages)) refuse(text, "unknown choice");
  std::string_view list = text.substr(kStages.size());
  while (true) {
    const std::size_t comma = list.find(',');
    const auto [first, last] = range_in(text, list.substr(0, comma));
    if (last >= stages)
      refuse(text,
             "there is no stage " + std::to_string(last) + ", the stages are 0 to " +
                 std::to_string(stages - 1));
    std::fill(chosen.begin() + first, chosen.begin() + last + 1, true);
    if (comma == std::string_view::npos) return chosen;
    list.remove_prefix(comma + 1);
  }
}

}  // namespace millrace
