// A run as one page: its curves, where the time of every rank went, the last step's timeline, and
// what it lost most to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/scheduler/plan/program.hpp"
#include "millrace/training/step_record.hpp"
#include "millrace/training/step_totals.hpp"

namespace millrace {

/// Consecutive steps as one point of the curves. A mean over what was finite, NaN where nothing
/// was.
struct HistoryPoint {
  std::int64_t step = 0;  ///< the last of them
  double loss = 0;
  double gradient_norm = 0;
  double learning_rate = 0;
  double samples_per_second = 0;  ///< samples over time
  double bubble = 0;
  double loss_scale = 0;
  std::int64_t skipped = 0;  ///< how many of them
};

/// What the curves are drawn of, in bounded memory: when there are `most` points, neighbours become
/// one. Thread-safety: externally synchronised.
class RunHistory {
 public:
  /// Throws InvalidArgument unless `most` is even and at least 2.
  explicit RunHistory(std::size_t most = 2000);

  /// Cost: amortised O(1).
  void add(const StepRecord& record);

  /// In the order of the steps; the last one may have fewer of them. Cost: O(points).
  [[nodiscard]] std::vector<HistoryPoint> points() const;
  /// How many steps one point has.
  [[nodiscard]] std::int64_t steps_per_point() const { return width_; }

 private:
  /// Sums, so that neighbours can be joined.
  struct Sums {
    std::int64_t steps = 0, last_step = 0, skipped = 0;
    std::int64_t losses = 0, norms = 0;  // finite ones
    double loss = 0, norm = 0, rate = 0, scale = 0, bubble = 0, samples = 0, seconds = 0;
  };

  static void join(Sums& sums, const Sums& more);
  [[nodiscard]] static HistoryPoint point_of(const Sums& sums);

  std::size_t most_;
  std::int64_t width_ = 1;
  std::vector<Sums> sums_;
};

/// What a page shows. Must outlive the call.
struct RunPage {
  std::string title;     ///< of the run, as text
  std::string subtitle;  ///< what it trained, as text
  const RunHistory& history;
  const StepTotals& totals;
  const Program& program;  ///< as executed
  const Timeline& last;    ///< of the program: the last step's
};

/// HTML without scripts or external resources. Names the bottleneck by its cause. Timelines of more
/// than 20,000 actions are left out, and the page says so. Cost: O(points + ranks + actions).
[[nodiscard]] std::string draw_page(const RunPage& page);

}  // namespace millrace
