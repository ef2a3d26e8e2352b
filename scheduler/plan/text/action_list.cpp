// Actions of one rank as text; see text.hpp.
#include <algorithm>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/text.hpp"
#include "plan/text/action_text.hpp"

namespace millrace {

std::vector<Action> parse_actions(std::string_view text) {
  constexpr std::string_view blank = " \t\r\n";
  std::vector<Action> actions;
  bool open = false;  // behind a +, which another action has to follow
  std::size_t from = std::min(text.find_first_not_of(blank), text.size());
  while (from < text.size()) {
    const std::size_t end = std::min(text.find_first_of(" \t\r\n+", from), text.size());
    const ScannedAction scanned = scan_action(text.substr(from, end - from), ActionGrammar::Plan);
    require(scanned.sentence.empty(), [&] {
      return "action " + std::to_string(actions.size()) + ", " +
             quoted(text.substr(from, end - from)) + ": " + scanned.sentence;
    });
    actions.push_back(scanned.action);
    open = end < text.size() && text[end] == '+';
    actions.back().with_next = open;
    from = open ? end + 1 : std::min(text.find_first_not_of(blank, end), text.size());
  }
  require(!open, "the text ends in '+'; the other half of the pair is missing");
  return actions;
}

}  // namespace millrace
