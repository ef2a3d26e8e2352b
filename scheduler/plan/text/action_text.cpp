// Scanner for one action; see action_text.hpp.
#include "plan/text/action_text.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/text.hpp"

namespace millrace {

std::vector<Action> parse_actions(std::string_view text) {
  constexpr std::string_view blank = " \t\r\n";
  std::vector<Action> actions;
  bool open = false;  // behind a +, which another action has to follow
  std::size_t from = std::min(text.find_first_not_of(blank), text.size());
  while (from < text.size()) {
    const std::size_t end = std::min(text.find_first_of(" \t\r\n+", from), text.size());
    const ScannedAction scanned = scan_action(text.substr(from, end - from), ActionGrammar::Plan);
    require(scanned.message.empty(), [&] {
      return "action " + std::to_string(actions.size()) + ", " +
             quoted(text.substr(from, end - from)) + ": " + scanned.message;
    });
    actions.push_back(scanned.action);
    open = end < text.size() && text[end] == '+';
    actions.back().with_next = open;
    from = open ? end + 1 : std::min(text.find_first_not_of(blank, end), text.size());
  }
  require(!open, "the text ends in '+'; the other half of the pair is missing");
  return actions;
}

namespace {

constexpr std::int64_t kLargest = 2'147'483'646;  // so that a count, number + 1, still fits an int

bool is_digit(char byte) {
  return byte >= '0' && byte <= '9';
}

bool is_letter(char byte) {
  return (byte >= 'A' && byte <= 'Z') || byte == '_';
}

struct Cursor {
  std::string_view text;
  std::size_t at = 0;

  [[nodiscard]] bool done() const { return at == text.size(); }
  [[nodiscard]] bool sees(char byte) const { return !done() && text[at] == byte; }

  std::string_view letters() {
    const std::size_t from = at;
    while (!done() && is_letter(text[at])) ++at;
    return text.substr(from, at - from);
  }

  // Fails (empty) without digits or above `largest`; then `at` is where the fault is.
  std::optional<std::int32_t> number(std::int64_t largest = kLargest) {
    const std::size_t from = at;
    std::int64_t value = 0;
    while (!done() && is_digit(text[at])) {
      value = value * 10 + (text[at] - '0');
      if (value > largest) {
        at = from;
        return std::nullopt;
      }
      ++at;
    }
    if (at == from) return std::nullopt;
    return static_cast<std::int32_t>(value);
  }
};

ScannedAction good(const Action& action) {
  ScannedAction scanned;
  scanned.action = action;
  return scanned;
}

ScannedAction fault(const Cursor& cursor, std::string message) {
  ScannedAction scanned;
  scanned.offset = cursor.at;
  scanned.message = std::move(message);
  return scanned;
}

ScannedAction number_fault(const Cursor& cursor,
                           const std::string& what,
                           std::int64_t largest = kLargest) {
  if (cursor.done()) return fault(cursor, "expected " + what + ", found the end");
  if (is_digit(cursor.text[cursor.at]))
    return fault(cursor, what + " is larger than " + std::to_string(largest));
  return fault(cursor, "expected " + what + ", found " + quoted(cursor.text[cursor.at]));
}

std::optional<Op> op_called(std::string_view name, ActionGrammar grammar) {
  if (grammar == ActionGrammar::OldCsv) {
    if (name == "BW") return Op::Backward;
    if (name == "B") return Op::BackwardInput;
    if (name == "I") return std::nullopt;
  }
  for (int i = 0; i < kOps; ++i) {
    const Op op = static_cast<Op>(i);
    const bool ours = op == Op::Recompute || op == Op::OptimizerStep;
    if (name == letters(op) && (!ours || grammar == ActionGrammar::Plan)) return op;
  }
  return std::nullopt;
}

std::string unknown_op(std::string_view name, ActionGrammar grammar) {
  if (name == "BW")
    return "BW is the full backward of PyTorch's old letters; write B, or read with the old "
           "letters";
  if (name == "I" && grammar == ActionGrammar::OldCsv)
    return "I is not among PyTorch's old letters, where B is the input gradient";
  std::string known = "F I W B SEND_F RECV_F SEND_B RECV_B REDUCE_GRAD";
  if (grammar == ActionGrammar::OldCsv) known = "F B W BW SEND_F RECV_F SEND_B RECV_B REDUCE_GRAD";
  if (grammar == ActionGrammar::Plan) known += " R STEP";
  return "unknown action " + quoted(name) + "; known are " + known;
}

// Micro-batch and, in a plan, slice and link.
ScannedAction scan_unit(Cursor& cursor, Action action, ActionGrammar grammar) {
  const auto micro_batch = cursor.number();
  if (!micro_batch) return number_fault(cursor, "a micro-batch number");
  action.micro_batch = MicroBatch{*micro_batch};
  if (grammar == ActionGrammar::Plan && cursor.sees('.')) {
    ++cursor.at;
    const auto slice = cursor.number();
    if (!slice) return number_fault(cursor, "a slice number");
    action.slice = Slice{*slice};
  }
  if (grammar == ActionGrammar::Plan && cursor.sees('@') && !is_compute(action.op)) {
    ++cursor.at;
    const auto edge = cursor.number(255);
    if (!edge) return number_fault(cursor, "a link number", 255);
    action.edge = static_cast<std::uint8_t>(*edge);
  }
  return good(action);
}

}  // namespace

ScannedAction scan_action(std::string_view text, ActionGrammar grammar) {
  Cursor cursor{text};
  const auto stage = cursor.number();
  if (!stage) return number_fault(cursor, "a stage number");
  Action action;
  action.stage = Stage{*stage};
  if (grammar == ActionGrammar::Plan && cursor.sees('\'')) {
    action.replica_number = 1;
    ++cursor.at;
  }

  const std::size_t name_at = cursor.at;
  const std::string_view name = cursor.letters();
  if (name.empty()) {
    const std::string found = cursor.done() ? "the end" : quoted(cursor.text[cursor.at]);
    return fault(cursor, "expected an action's letters, found " + found);
  }
  ScannedAction scanned;
  if (grammar != ActionGrammar::Plan && (name == "UNSHARD" || name == "RESHARD")) {
    scanned.sharding = true;
  } else {
    const auto op = op_called(name, grammar);
    if (!op) {
      scanned = fault(Cursor{text, name_at}, unknown_op(name, grammar));
      scanned.old_letter = grammar == ActionGrammar::Csv && name == "BW";
      return scanned;
    }
    action.op = *op;
    scanned = has_unit(*op) ? scan_unit(cursor, action, grammar) : good(action);
  }
  if (scanned.message.empty() && !cursor.done())
    return fault(cursor,
                 "unexpected " + quoted(text.substr(cursor.at)) + " after " +
                     std::string(text.substr(0, cursor.at)));
  return scanned;
}

std::string quoted(char byte) {
  if (byte >= 0x20 && byte < 0x7f) return std::string("'") + byte + "'";
  constexpr std::array<char, 17> digits{"0123456789ABCDEF"};
  const auto value = static_cast<unsigned char>(byte);
  return std::string("byte 0x") + digits[value >> 4U] + digits[value & 15U];
}

std::string quoted(std::string_view text) {
  constexpr std::size_t shown = 20;
  std::string result = "'";
  for (const char byte : text.substr(0, shown)) result += byte >= 0x20 && byte < 0x7f ? byte : '?';
  return result + (text.size() > shown ? "...'" : "'");
}

}  // namespace millrace
