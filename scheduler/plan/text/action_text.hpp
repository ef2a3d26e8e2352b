// One action as text, for both text forms: PyTorch's cell grammar, and the plan file's superset of
// it with replicas, slices, recompute and optimizer steps. Anchored: a match ends where the text
// ends.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "millrace/scheduler/plan/program.hpp"

namespace millrace {

enum class ActionGrammar { Csv, OldCsv, Plan };

/// The outcome of scanning one action: `message` is empty exactly when `action` is good.
struct ScannedAction {
  Action action;
  std::size_t offset = 0;   ///< of the fault, from the start of the text
  std::string message;      ///< the fault
  bool old_letter = false;  ///< the fault is BW, which the old letters have
  bool sharding = false;    ///< UNSHARD or RESHARD: well-formed, but not an action of ours
};

[[nodiscard]] ScannedAction scan_action(std::string_view text, ActionGrammar grammar);

/// Whether the schedule CSV has a sign for the pair: one F with one B or I.
[[nodiscard]] inline bool is_csv_pair(const Action& one, const Action& two) {
  return (one.op == Op::Forward && gives_input_gradient(two.op)) ||
         (two.op == Op::Forward && gives_input_gradient(one.op));
}

/// "'x'" or "byte 0xEF", for messages.
[[nodiscard]] std::string quoted(char byte);

/// A piece of the user's text for a message: quoted, cut after 20 bytes, control bytes as '?'.
[[nodiscard]] std::string quoted(std::string_view text);

}  // namespace millrace
