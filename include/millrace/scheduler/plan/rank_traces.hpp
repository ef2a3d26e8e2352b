// Traces that other pipeline engines recorded, one file per rank, as one trace of millrace: import
// makes costs of it, compare holds it against a plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/scheduler/plan/program.hpp"

namespace millrace {

/// Gathers the passes of several ranks. Two kinds of files are read:
/// - Kineto's trace of torch.distributed.pipelining: regions PP:0F3 and PP:(0F3;1B2)OVERLAP_F_B of
///   its runtime, Forward 3 and Backward 3 of ScheduleGPipe, whose stage is the rank. Where regions
///   are on a device, these count. On the host a pass begins when what it receives over gloo is
///   there; the halves of a pair take half its time each.
/// - Primus' pp_rank_N.json, with config.json before or after them. A chunk c of rank r is stage
///   c p + r, or, with `v_placement`, stage 2 p - 1 - r for chunk 1.
/// Thread-safety: externally synchronised.
class RankTraces {
 public:
  explicit RankTraces(bool v_placement = false) : v_placement_(v_placement) {}

  /// Whether the text is such a file; a trace is then that of the next rank, from 0. Throws
  /// DataError for a file of Primus that is damaged. Cost: O(length of the text).
  bool add(std::string_view text);

  [[nodiscard]] bool empty() const { return ranks_.empty(); }

  /// Trace-event JSON as draw_trace writes it, of all passes, or of the last of each kind: those of
  /// the last step. Clocks are as the files have them; Primus' start at 0 on every rank. Throws
  /// InvalidArgument where chunks are not in the files and config.json is missing.
  [[nodiscard]] std::string trace(bool last_step) const;

 private:
  /// Of kStage the action is whole. With a chunk its stage is missing, and of kOrder its
  /// micro-batch is its number among the passes of its kind.
  struct Pass {
    Action action;
    double start = 0, end = 0;  ///< microseconds
    int chunk = kStage;
  };
  static constexpr int kStage = -1, kOrder = -2;
  class Kineto;

  void add_primus(std::string_view text);
  [[nodiscard]] Action placed(std::size_t rank, const Pass& pass) const;

  bool v_placement_;
  int chunks_ = 0;                        // of config.json
  std::vector<std::vector<Pass>> ranks_;  // in the order of the files
};

}  // namespace millrace
