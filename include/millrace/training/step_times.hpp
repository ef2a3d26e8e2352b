// The clocks of a step in one process: how long it spent where, since the last record.
#pragma once

#include <chrono>
#include <vector>

namespace millrace {

/// Seconds. Thread-safety: externally synchronised; of `optimizer` each rank's by one thread.
struct StepTimes {
  double pass = 0;    ///< passes of the pipeline
  double update = 0;  ///< from the last pass to the end of the step
  double data = 0;
  double save = 0;
  double validation = 0;          ///< in no step
  std::vector<double> optimizer;  ///< by rank: norm and update of its own parameters
};

/// Adds the time for which it lives.
class Timed {
 public:
  explicit Timed(double& sum) : sum_(sum), start_(Clock::now()) {}
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

  ~Timed() { sum_ += std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;

  double& sum_;
  Clock::time_point start_;
};

}  // namespace millrace
