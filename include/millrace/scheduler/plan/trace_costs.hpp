// Costs from a trace that another program wrote: Chrome's and Perfetto's trace events as JSON,
// which is also what PyTorch's profiler (Kineto) exports. What is an F, B, I or W, of which stage,
// is told by patterns of event names.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/scheduler/plan/costs.hpp"
#include "millrace/scheduler/plan/text.hpp"

namespace millrace {

/// Names of events. A pattern is text with `{stage}`, `{micro_batch}` and `{slice}` where a number
/// from 0 stands, and `*` for anything; it matches a whole name. `|` separates patterns of which
/// one has to match. An empty pattern matches nothing. The defaults are the names of a trace of
/// millrace.
/// Thread-safety: immutable, share freely.
struct TracePatterns {
  std::string forward = "{stage}F{micro_batch}|{stage}F{micro_batch}.{slice}";
  std::string backward = "{stage}B{micro_batch}|{stage}B{micro_batch}.{slice}";
  std::string input = "{stage}I{micro_batch}|{stage}I{micro_batch}.{slice}";
  std::string weight = "{stage}W{micro_batch}|{stage}W{micro_batch}.{slice}";
};

/// Where the stage of an event stands that its name does not tell.
enum class StageOf : std::uint8_t { Name, Process, Thread, File };

struct TraceCostOptions {
  TracePatterns patterns = {};
  StageOf stage = StageOf::Name;
  /// Only events of this category. Empty: of any; but where some that match are of category
  /// gpu_user_annotation (Kineto's times of a named region on the device), these alone.
  std::string category = {};
  int ranks = 0;              ///< p of the cost file; 0: as many as stages
  bool forward_only = false;  ///< no backward is wanted: its times are 0
};

/// Gathers the durations of one or more traces (of one rank each, or of all) and gives their
/// medians. Complete events (ph X) and pairs of begin and end (ph B, E) of one thread are read;
/// times are microseconds.
/// Thread-safety: externally synchronised.
class TraceCosts {
 public:
  /// Throws InvalidArgument for a pattern with an unknown word in braces or the same twice, for one
  /// without {stage} when the stage is in the name, and for negative ranks.
  explicit TraceCosts(const TraceCostOptions& options);

  /// Reads a trace; the first is file 0. What is wrong with it, or nothing. A trace with a fault
  /// leaves nothing behind. One that ends within its list of events, as a killed recorder leaves
  /// it, is read to the last whole event. Cost: O(length of the text).
  [[nodiscard]] std::optional<Diagnostic> add(std::string_view trace);

  /// How many events the trace that was added last has, where it ends within its list.
  [[nodiscard]] std::optional<std::size_t> cut_after() const { return cut_after_; }

  /// The medians per op, stage and slice, in seconds. Where only full backwards were seen, I and W
  /// take half of one each, which Costs::assumed then says; where some stage has both,
  /// `backward` is its own median. Memory, latency and bandwidth are not in a trace: they are left
  /// out. Throws InvalidArgument naming the op and stage that has no event, with the phases that
  /// events of its name have, or when ranks do not divide the stages.
  [[nodiscard]] Costs costs() const;

  /// Events that costs() uses, by op (F, B, I, W), and the micro-batches that they name.
  struct Seen {
    std::array<std::size_t, 4> events{};
    std::size_t micro_batches = 0;
  };
  [[nodiscard]] Seen seen() const;

 private:
  /// One duration's place; micro_batch is -1 where the pattern names none.
  struct Place {
    std::size_t op = 0;
    std::int64_t stage = 0, slice = 0;
    auto operator<=>(const Place&) const = default;
  };
  struct Durations {
    std::vector<double> seconds;
    std::vector<std::int64_t> micro_batches;
  };
  using Table = std::map<Place, Durations>;
  using Phases = std::array<std::set<std::string>, 4>;  // by op

  struct Reader;
  [[nodiscard]] const Table& table() const { return of_device_.empty() ? of_any_ : of_device_; }
  /// Below 0 when there is none.
  [[nodiscard]] double median(const Place& place) const;
  [[nodiscard]] double needed(const Place& place) const;
  [[nodiscard]] std::string unread_phases(std::size_t op) const;
  [[nodiscard]] std::string assumption(const std::set<std::int64_t>& stages) const;
  void add_backward(Costs& costs, std::int64_t stage, std::int64_t slice) const;

  TraceCostOptions options_;
  std::int64_t files_ = 0;
  Table of_any_;     // every event that matched
  Table of_device_;  // those of category gpu_user_annotation
  Phases unread_;    // of events whose names are those of the op, where it is not X, nor B with E
  std::optional<std::size_t> cut_after_;
};

}  // namespace millrace
