// The cost file: measured (or planned) costs as JSON, what `train --profile` writes and
// `simulate --costs` reads.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/scheduler/plan/cost.hpp"
#include "millrace/scheduler/plan/text.hpp"

namespace millrace {

/// Costs with the shape they belong to.
/// Thread-safety: immutable, share freely.
struct CostFile {
  int ranks = 1;             ///< p
  int stages = 1;            ///< S of one replica; p x chunks in a pipeline of one replica
  std::string unit = "s";    ///< what one unit of time is, for titles
  std::string assumed = {};  ///< what the times take for granted, for people; empty: nothing
  Cost cost;                 ///< one entry per stage (and slice); ticks_per_unit is 1
};

/// The costs, or why there are none: exactly one of the two members is filled.
/// Thread-safety: immutable, share freely.
struct ParsedCosts {
  std::optional<CostFile> costs;
  std::vector<Diagnostic> diagnostics;
};

/// Reads a cost file: a JSON object with the fields
///   millrace_costs     format version, 1
///   unit               of all times: a word, usually "s"
///   assumed            optional, a text: what the times take for granted, as import writes it
///   ranks, chunks      p and v; the file is of S = p v stages
///   slices             optional, 1 unless given
///   forward, input, weight
///                      S x slices numbers: time of F, I and W of one micro-batch [slice] of each
///                      stage, stage after stage
///   backward, recompute
///                      optional, as above: a full backward (else input + weight), a recompute
///                      (else forward)
///   optimizer, after_passes, latency, bandwidth, message_bytes
///                      optional numbers: time of a rank's optimizer step, of a step outside its
///                      passes, of a message under way, bytes per unit of time (0: unlimited),
///                      bytes of a message
///   memory_forward, memory_input_peak, memory_input, memory_weight, memory_boundary
///                      optional, S numbers each: the members of Cost of the same names, in bytes
///   gradient_bytes     optional, S numbers: what the copies of a pipeline add of every stage
/// Unknown fields, lists of another length, negative or infinite times are faults.
/// Cost: O(length of the text). Thread-safety: pure function.
[[nodiscard]] ParsedCosts read_costs(std::string_view text);

/// The costs of a file for a shape with as many ranks and another number of stages, or with slices
/// that the file does not tell apart. Where a stage of the shape is k consecutive stages of the
/// file, their times and memory add up; where k stages of the shape share one of the file, each has
/// the k-th part of both, and a slice the q-th part of its stage's times. Times stay whole where
/// they were: ticks_per_unit grows. Throws InvalidArgument where the ranks differ, neither number
/// of stages divides the other, or the file has slices and the shape another number of them.
/// Cost: O(stages x slices). Thread-safety: pure function.
[[nodiscard]] Cost costs_for(const CostFile& file, const Shape& shape);

/// Writes a cost file; read_costs gives an equal one. Throws InvalidArgument when the cost's lists
/// do not fit its stages, when stages is no multiple of ranks, or where the format has no word:
/// rank speeds, costs per link, pairs, processors, copies of the pipeline.
[[nodiscard]] std::string write_costs(const CostFile& file);

/// F and a full backward of a whole micro-batch, per stage: the time that decides a cut.
[[nodiscard]] std::vector<double> stage_times(const Cost& cost);

/// The costs of a model whose stages hold several stages of `file` each: stage s those in
/// [boundaries[s], boundaries[s + 1]). Times and memory add up; the peak inside I is that of the
/// stages one after the other, the last one first; of boundaries the first stage's counts. Throws
/// InvalidArgument unless the boundaries run strictly upwards from 0 to the file's stages and
/// `ranks` divides their number. Cost: O(stages slices).
[[nodiscard]] CostFile merged_stages(const CostFile& file,
                                     const std::vector<int>& boundaries,
                                     int ranks);

}  // namespace millrace
