// The events of a trace (Chrome's trace-event JSON), one after another without the document in
// memory: traces are large, and those of a recorder that was killed have no end.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "millrace/scheduler/plan/text.hpp"

namespace millrace::plan {

/// What became of a trace: a fault, or how many whole events it has.
struct ReadTrace {
  std::optional<Diagnostic> fault;
  std::size_t events = 0;
  bool cut_off = false;  ///< the text ends before its list of events, or the document, does
};

/// Calls `use` for every event: an object with those members of the event that describe it (ph,
/// name, cat, pid, tid, ts, dur, and action and arrived of args) and are no lists or objects.
/// `use` returns what is wrong with the event, which ends the reading; empty: nothing. The list is
/// the document, or its member traceEvents. A text that ends inside that list or behind it is read
/// to its last whole event. Cost: O(length of the text), memory of one event.
[[nodiscard]] ReadTrace read_events(std::string_view text,
                                    const std::function<std::string(const nlohmann::json&)>& use);

}  // namespace millrace::plan
