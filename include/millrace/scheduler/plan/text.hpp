// Text of a schedule: PyTorch's schedule CSV, which other projects read, and our own plan file
// (JSON), which says everything a program can say and carries a hash. Reading never throws for bad
// text and never yields half a program; files themselves are opened by the caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/scheduler/plan/program.hpp"

namespace millrace {

/// The member of CsvOptions that would read what is a fault without it.
enum class CsvCure : std::uint8_t { None, OldLetters, SkipSharding };

/// One fault of a text: where and what. Lines and columns count from 1, columns in bytes.
/// Thread-safety: immutable, share freely.
struct Diagnostic {
  std::size_t line = 1;
  std::size_t column = 1;
  std::string message;
  CsvCure cure = CsvCure::None;

  friend bool operator==(const Diagnostic&, const Diagnostic&) = default;
};

/// "3:14: expected a stage number, found 'x'".
[[nodiscard]] std::string to_string(const Diagnostic& diagnostic);

/// The program, or why there is none: exactly one of the two members is filled.
/// Thread-safety: immutable, share freely.
struct ParsedProgram {
  std::optional<Program> program;
  std::vector<Diagnostic> diagnostics;  ///< in the order of the text, at most 100
};

/// How to read a schedule CSV.
struct CsvOptions {
  /// Letters of older PyTorch files: B is the input gradient and BW the full backward.
  bool old_letters = false;
  /// Leave out UNSHARD and RESHARD (parameter traffic of sharded data parallelism), which a
  /// millrace program does not have; without this they are an error.
  bool skip_sharding = false;
};

/// Reads PyTorch's schedule CSV, compute-only or with communication: one row per rank, cells
/// separated by commas.
///
///   cell   = action | "(" action ";" action ")OVERLAP_F_B" | nothing (an idle step, skipped)
///   action = stage TYPE micro-batch | stage "REDUCE_GRAD"
///   TYPE   = F | I | W | B | SEND_F | RECV_F | SEND_B | RECV_B
///
/// Every cell is matched to its end. Spaces round a cell and lines that start with # are skipped,
/// as are blank lines at the end. The shape is derived: ranks = rows, stages and micro-batches from
/// the largest numbers, the placement from the rows; a stage in two rows, a stage number that never
/// occurs and a row without action are faults. Whether the schedule is correct is verify's
/// question. Cost: O(length of the text), in memory too, whatever numbers the text contains.
/// Source: torch.distributed.pipelining, schedules.py (_Action.from_str, _load_csv).
///
///   const ParsedProgram read = read_csv("0F0,0B0\n1F0,1B0\n");
///   if (!read.program) std::cerr << to_string(read.diagnostics.front());
[[nodiscard]] ParsedProgram read_csv(std::string_view text, const CsvOptions& options = {});

/// Writes PyTorch's schedule CSV: read_csv(write_csv(p)) has p's shape and actions. Throws
/// InvalidArgument for what that grammar cannot say: replicas, slices, edges, recompute, optimizer
/// steps, a rank without action. Cost: O(actions).
[[nodiscard]] std::string write_csv(const Program& program);

/// An engine that runs PyTorch's schedule CSV: torch.distributed.pipelining, which takes any
/// placement of stages, and two that derive the placement from the name of a schedule.
enum class CsvEngine : std::uint8_t { Torch, Torchtitan, Automodel };

/// "torch", "torchtitan" or "automodel". Throws InvalidArgument, with these, for another name.
[[nodiscard]] CsvEngine parse_csv_engine(std::string_view name);

/// A schedule for an engine, and the lines of the engine's configuration that use it.
struct EngineCsv {
  std::string csv;
  std::string settings;
};

/// The passes of a program as compute-only CSV, in which PyTorch trains with right gradients; it
/// inserts messages and reductions by itself, so those of the program are left out. `path` is the
/// file's name in the settings. Throws InvalidArgument, with a schedule that fits, for
/// - replicas, slices, edges, ties, recompute and programs without backward passes;
/// - passes that verify rejects: missing, twice, or in an order that cannot run;
/// - forward passes of the last stage that do not ascend;
/// - with Torchtitan and Automodel a placement other than one stage per rank, a loop or a V.
/// Cost: O(actions log actions).
[[nodiscard]] EngineCsv write_engine_csv(const Program& program,
                                         CsvEngine engine,
                                         std::string_view path = "schedule.csv");

/// Reads the actions of one rank, as a plan file has them: separated by spaces, joined by + when
/// they are a pair, "0F0 0F1+0B0 0'F2.1". Throws InvalidArgument with the place of the first fault.
/// Cost: O(length of the text). Thread-safety: pure function.
[[nodiscard]] std::vector<Action> parse_actions(std::string_view text);

/// What a plan file holds.
/// Thread-safety: immutable, share freely.
struct Plan {
  Program program;
  /// First layer of every stage but the first: stages - 1 ascending numbers from 1; empty when the
  /// plan leaves the partition of the layers open.
  std::vector<int> boundaries = {};

  friend bool operator==(const Plan&, const Plan&) = default;
};

/// The plan, or why there is none: exactly one of the two members is filled.
/// Thread-safety: immutable, share freely.
struct ParsedPlan {
  std::optional<Plan> plan;
  std::vector<Diagnostic> diagnostics;
};

/// Reads a plan file: JSON with the fields
///   millrace_plan  format version, 1
///   name           what generated it
///   shape          {ranks, micro_batches, placement: [[rank of each stage] of each replica]} and,
///                  where they are not 1, false and all 0: slices, forward_only, replica_of:
///                  [replica of each micro-batch]; where stages are no chain, edges:
///                  [[from stage, output, to stage, input] of each]
///   program        one string per rank: actions as to_string writes them, separated by spaces,
///                  joined by + when they are a pair: "0F0 0F1+0B0 0'F2.1"
///   boundaries     optional, as in Plan
///   hash           optional, as a file written by hand has none: plan_hash of the program
///   checksum       likewise: xxh3-128 over hash, name and boundaries
/// Unknown fields, numbers outside the shape and wrong hashes are faults.
/// Cost: O(length of the text), in memory too, whatever numbers the text contains.
[[nodiscard]] ParsedPlan read_plan(std::string_view text);

/// Writes a plan file; read_plan gives an equal plan. Throws InvalidArgument when the boundaries do
/// not fit the stages or there are more than two replicas. Cost: O(actions).
[[nodiscard]] std::string write_plan(const Plan& plan);

/// xxh3-128 of shape and actions as 32 hexadecimal digits; the name has no part in it. The same on
/// every machine. Two workers compare it before they exchange a tensor. Cost: O(actions).
[[nodiscard]] std::string plan_hash(const Program& program);

}  // namespace millrace
