// Which layers keep nothing between forward and backward and run again instead: memory for time,
// without another bit anywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/scheduler/plan/program.hpp"
#include "millrace/stages/models.hpp"

namespace millrace {

enum class RecomputeKind : std::uint8_t { None, All, Stages, Every, Selective, Auto };

/// A choice of layers. Consecutive chosen layers of a stage are a segment: what it is given is
/// kept, and its layers run again, dropout and all, when the backward comes to them (Chen et al.,
/// "Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174). The last segment of a stage
/// runs again in the recompute action of the plan, each other one inside I or B.
/// - All: every layer, a segment a stage.
/// - Stages: every layer of some stages, a segment a stage: what `search` chooses.
/// - Every: every layer, in segments of `every` layers, counted from the model's first.
/// - Selective: the named layers: numbers ("3"), ranges ("5-7") and kinds ("linear").
/// - Auto: few layers, so that no rank is predicted to stash more than `bytes`: for the fullest
/// rank
///   always the shortest run of its layers that makes it fit, or the one that frees most per layer;
///   those that proved needless in the end are given back. Not always the fewest that there are.
/// Thread-safety: a value.
struct Recompute {
  RecomputeKind kind = RecomputeKind::None;
  int every = 0;
  std::vector<std::string> layers = {};
  std::size_t bytes = 0;
  std::string stages = {};  ///< "stages:0,2-4", as parse_recompute_stages reads it

  friend bool operator==(const Recompute&, const Recompute&) = default;
};

/// Reads "none", "all", "stages:0,2-4" (read as such when the number of stages is known),
/// "every-4", "selective:2,5-7,layer_norm" or "auto:64M" (bytes, or with K, M, G: times 1,024, its
/// square, its cube). Throws InvalidArgument that says what is allowed.
[[nodiscard]] Recompute parse_recompute(std::string_view text);

/// In that form.
[[nodiscard]] std::string to_string(const Recompute& recompute);

/// By layer of the model: the number of its segment in its stage, or StageModule::kKept. What
/// StageModule::recompute_in takes, stage after stage. `micro_batch` is what Auto predicts for: the
/// largest unit. The stages of a program that recomputes by itself are chosen whole. Throws
/// InvalidArgument for such a program with any choice but None, for a stage, layer or kind that the
/// model has not, and when Auto cannot fit: it names the least that it reached. Cost: of Auto,
/// O(layers^2) predictions of all ranks' stashes a run, each O(actions).
[[nodiscard]] std::vector<int> recompute_segments(const Recompute& recompute,
                                                  const ModelSpec& model,
                                                  std::span<const int> boundaries,
                                                  const Program& program,
                                                  const UnitSize& micro_batch);

/// A stage's part of them.
[[nodiscard]] std::vector<int> segments_of_stage(std::span<const int> segments,
                                                 std::span<const int> boundaries,
                                                 std::size_t stage);

/// By stage: whether any of its layers is in a segment.
[[nodiscard]] std::vector<bool> recomputed_stages(std::span<const int> segments,
                                                  std::span<const int> boundaries);

}  // namespace millrace
