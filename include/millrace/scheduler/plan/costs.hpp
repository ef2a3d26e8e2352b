// Costs: what a model and a machine cost, stated once for every partition of the model; the table
// of its members, which flags, JSON, Python, sweeps and --help read; and cost files.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "millrace/scheduler/plan/cost.hpp"
#include "millrace/scheduler/plan/text.hpp"

namespace millrace {

/// Costs of full stages (`stages` is 0) or of given stages. Of full stages, lists of times, memory
/// and gradients hold 1 value; p values, of p consecutive full stages; or S values, of each stage
/// as if it were a full one. Of given stages they hold one value per stage; times one per stage and
/// slice, stage after stage. An empty list is the default.
/// Thread-safety: immutable, share freely.
struct Costs {
  std::vector<double> forward = {}, input = {}, weight = {};  ///< F, I, W; default 1; B takes I + W
  std::vector<double> backward = {};                          ///< B of given stages; default: I + W
  std::vector<double> recompute = {};                         ///< default: as forward
  std::vector<double> slice_costs = {};  ///< q shares in a stage's times; default: equal
  bool chunk_costs = false;              ///< the times and memory are of a chunk

  std::vector<double> memory_forward = {};       ///< change at F; default 1
  std::vector<double> memory_forward_peak = {};  ///< most inside F, of given stages; default: as F
  std::vector<double> memory_input_peak = {};    ///< most inside I, of given stages
  std::vector<double> memory_input = {};         ///< after I; default 0
  std::vector<double> memory_weight = {};        ///< after W; default: frees the other two
  std::vector<double> memory_boundary = {};  ///< of a stage of any size that recomputes; default 0

  std::vector<double> latency = {};    ///< of a message: 1 value or p x p; default 0
  std::vector<double> bandwidth = {};  ///< bytes per unit of time, 1 value or p x p; 0: unlimited;
                                       ///< needs message_bytes or gradient_bytes
  std::vector<double> message_bytes = {};   ///< of one micro-batch: 1 value, or one per boundary of
                                            ///< p or S stages, p - 1 or S - 1; needs bandwidth
  bool contention = false;                  ///< messages of a directed link follow one another
  std::vector<double> rank_speed = {};      ///< p factors; default 1
  std::optional<int> cores = {};            ///< that the ranks share; default: one per rank
  int data_parallel = 1;                    ///< data-parallel replicas; their gradients are added
  bool tree_of_sums = false;                ///< partial sums of gradients count as memory
  std::vector<double> gradient_bytes = {};  ///< default 0; needs data_parallel or tree_of_sums
  int accumulate = 1;                       ///< accumulation steps: passes of one step
  bool atomic_pairs = false;                ///< overlapped pairs are one op of F + B
  /// Times of overlapped pairs that run as one, of full stages: F with B, and with I unless
  /// pair_input states that; F with W; F with F. Without one, a pair's halves follow one another.
  std::optional<double> pair_cost = {}, pair_input = {}, pair_weight = {}, pair_forward = {};
  std::optional<double> optimizer = {};     ///< time of a rank's optimizer step, of given stages
  std::optional<double> after_passes = {};  ///< of a step outside its passes, of given stages

  int ranks = 0, stages = 0, slices = 1;  ///< of given stages: p, S of one replica, q
  std::string unit = "s";                 ///< of time, for titles
  std::string assumed = {};               ///< what an import assumed; empty: nothing

  /// Costs of given stages, which hold for all that they state; the lists here add to them.
  std::shared_ptr<const Costs> file = {};
  std::string file_name = {};  ///< for messages
};

/// One row of the table: a cost by its name, for all that read or write costs by names. A new cost
/// is its member, its row and what it does in cost_of.
struct CostMember {
  /// Where a cost file has it.
  enum class InFile : std::uint8_t { No, Number, Boundaries, Stages, StagesAndSlices };

  std::string_view name;
  std::variant<std::vector<double> Costs::*,
               std::optional<double> Costs::*,
               std::optional<int> Costs::*,
               int Costs::*,
               bool Costs::*>
      member;
  std::string_view help;  ///< one line, other costs in backquotes; empty: of cost files alone
  double least = 0;       ///< smallest value
  InFile in_file = InFile::No;
  bool in_search = true;  ///< a search takes it
};

/// All members, in the order of flags and of the fields of a cost file.
[[nodiscard]] std::span<const CostMember> cost_members();

/// The given costs, completed by `said`. Throws InvalidArgument where both state the same.
[[nodiscard]] Costs over(Costs file, std::string file_name, Costs said);

/// Throws InvalidArgument where members contradict each other or lack each other: a list that
/// `file` has, a bandwidth without bytes, two times of a pair, a value out of its range.
void require_consistent(const Costs& costs);

/// A limit needs something to limit: throws InvalidArgument when there is a file, and neither it
/// nor a list states memory.
void require_memory(const Costs& costs);

/// Whether a list of times or memory was given: what a file may state too.
[[nodiscard]] bool states_times_or_memory(const Costs& costs);

/// The same without gradients, and the bandwidth that is for them alone, where a pipeline of this
/// shape adds none: for comparisons of shapes, some of which cost_of would reject.
[[nodiscard]] Costs costs_that_apply(const Costs& costs, const Shape& shape);

/// Costs of a shape. Of full stages, a stage takes p / S of a full stage's time and a slice its
/// share of that; every time is a whole number of ticks when the given times have at most nine
/// decimals. Of given stages, k stages of the file that are one of the shape add up, and k stages
/// of the shape that are one of the file take the k-th part each, a slice the q-th part of its
/// stage's times. Throws InvalidArgument, with the names of the members, for a list of another
/// length, where the ranks differ, where neither number of stages divides the other, or where the
/// file has slices and the shape another number of them. Cost: O(stages slices). Thread-safety:
/// pure function.
[[nodiscard]] Cost cost_of(const Shape& shape, const Costs& costs);

/// The costs of the shape's stages as `cost` has them, one tick per unit. Pairs, passes, copies and
/// cores are left out.
[[nodiscard]] Costs costs_of_stages(const Shape& shape, const Cost& cost);

/// The most that a rank may hold at any moment, inside passes too: one value for all ranks, or one
/// per rank; each in the units of memory_forward, or of what p full stages keep at F.
struct MemoryLimit {
  std::vector<double> of_rank = {};  ///< empty: no limit
  std::vector<bool> of_all = {};     ///< by value; "2p": times what p full stages keep
};

/// Reads "6", "2p", "3,4,5,6" or "1p,4,4,4". Throws InvalidArgument for another text or a value
/// below 0.
[[nodiscard]] MemoryLimit parse_memory_limit(std::string_view text);

/// The limit by rank, in the units of memory_forward; empty without a limit. `stages` are those of
/// one replica of the model. Throws InvalidArgument unless there is one value or one per rank.
[[nodiscard]] std::vector<double> memory_limits(const MemoryLimit& limit,
                                                const Costs& costs,
                                                int ranks,
                                                int stages);

/// The mean full stage: what generators read, and rows of a sweep state.
struct MeanStage {
  double forward = 1, input = 1, weight = 1, latency = 0, bandwidth = 0, gradient_bytes = 0;
  double memory_forward = 1, memory_forward_peak = 0, memory_input = 0, memory_weight = -1;
  std::optional<double> memory_input_peak = {};  ///< unset: what I leaves for W, memory_input
};

/// `chunks`: of a rank, where the costs are of chunks.
[[nodiscard]] MeanStage mean_stage(const Costs& costs, int chunks = 1);

/// F and a full backward of a whole micro-batch, per given stage: the time that decides a
/// partition.
[[nodiscard]] std::vector<double> stage_times(const Costs& costs);

/// The costs of a model whose stages hold several given stages each: stage s those in
/// [boundaries[s], boundaries[s + 1]). Times and memory add up; the peak inside I is that of the
/// stages one after the other, the last one first; of boundaries the first stage's counts. Throws
/// InvalidArgument unless the boundaries run strictly upwards from 0 to the number of stages and
/// `ranks` divides their number. Cost: O(stages slices).
[[nodiscard]] Costs merged_stages(const Costs& costs,
                                  const std::vector<int>& boundaries,
                                  int ranks);

/// The costs, or why there are none: exactly one of the two members is filled.
/// Thread-safety: immutable, share freely.
struct ParsedCosts {
  std::optional<Costs> costs;
  std::vector<Diagnostic> diagnostics;
};

/// Reads a cost file: a JSON object with the fields
///   millrace_costs     format version, 1
///   unit               of all times: a word, usually "s"
///   assumed            optional, a text: what an import assumed
///   ranks, chunks      p and v; the file is of S = p v stages
///   slices             optional, 1 unless given
/// and the members of the table that are in files: forward, input and weight, and what else is
/// given, lists of S or S x slices numbers, and numbers; memory and bytes in bytes.
/// Unknown fields, lists of another length, negative or infinite times are faults.
/// Cost: O(length of the text). Thread-safety: pure function.
[[nodiscard]] ParsedCosts read_costs(std::string_view text,
                                     std::span<const CostMember> members = cost_members());

/// Writes a cost file; read_costs returns an equal one. Throws InvalidArgument when the lists do
/// not fit the stages, when stages is not a multiple of ranks, or for a member that is not in
/// files, such as rank_speed.
[[nodiscard]] std::string write_costs(const Costs& costs,
                                      std::span<const CostMember> members = cost_members());

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
