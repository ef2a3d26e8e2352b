// StepEnd: when each rank is done with a step. After its last pass there are the sums over copies
// of the pipeline, and what copies of a stage on several ranks give one another behind those.
#pragma once

#include <cstddef>
#include <vector>

#include "plan/model/job.hpp"

namespace millrace::plan {

/// When something is done, and the place in the order of the pass that it follows from, whose end
/// is the last that anything on the way to it waited for.
struct RankEnd {
  double time = 0;
  std::size_t at = 0;
};

/// Thread-safety: externally synchronised (keeps scratch arrays).
class StepEnd {
 public:
  /// `job` must outlive it.
  explicit StepEnd(const Job& job);

  /// By rank, of an order that has run to its end: `ends` by node; a rank that runs nothing is done
  /// at its start. `unit_ends` are those of the job's unit run, which say where ranks come to which
  /// stage's gradients first; empty for a job without. Cost: O(ranks), with sums O(what ranks run
  /// behind the last B or W of their first stage to be done, and ways between ranks).
  void find(const JobOrder& order,
            const std::vector<double>& ends,
            const std::vector<double>& starts,
            const std::vector<double>& unit_ends,
            std::vector<RankEnd>& result);

 private:
  void find_sums(const JobOrder& order, const std::vector<double>& ends, std::size_t rank);
  void sort_meetings(const JobOrder& order, const std::vector<double>& unit_ends);
  void meet(const Job::Meeting& meeting, std::vector<RankEnd>& result);

  const Job& job_;
  std::vector<std::size_t> begins_;    // where a rank's sums begin, last first
  std::vector<std::size_t> last_;      // by copy: the place of its last B or W
  std::vector<RankEnd> sums_;          // by copy
  std::vector<RankEnd> before_;        // by copy of a meeting: before its rank comes to it
  std::vector<double> ticks_;          // by meeting, of the unit run
  std::vector<std::size_t> meetings_;  // in the order in which ranks come to them
};

}  // namespace millrace::plan
