// Makes the record of every step: the passes' timelines and the process' clocks, of all processes.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <vector>

#include "millrace/core/tensor_list.hpp"
#include "millrace/scheduler/plan/graph.hpp"
#include "millrace/scheduler/run/executor.hpp"
#include "millrace/training/records.hpp"
#include "millrace/training/step_times.hpp"
#include "millrace/transport/process_group.hpp"

namespace millrace {

/// Thread-safety: externally synchronised.
class StepWatch {
 public:
  /// All must outlive this. A collective of the group. Throws InvalidArgument when the executor
  /// records no timeline.
  StepWatch(const Executor& executor, ProcessGroup& group);

  /// From now on the next record's time counts.
  void restart();
  /// Forgets the passes of a step that did not end.
  void begin_step() { passes_ = 0; }
  /// After every run of the executor.
  void add_pass();

  /// A collective; the group's first process gets the record. `times` begins again.
  [[nodiscard]] std::optional<StepRecord> record(const StepReport& report,
                                                 std::int64_t step,
                                                 StepTimes& times);

 private:
  /// Of one process.
  struct Account {
    std::size_t place = 0;  ///< its rank of the program; meaningless where it hosts all
    bool on_first_machine = true;
    double seconds = 0, pass = 0, update = 0, data = 0, save = 0;
    std::vector<double> optimizer;  ///< by rank of the program
    std::vector<double> started;    ///< by pass: seconds on its machine's clock
    std::vector<Timeline> passes;
  };

  [[nodiscard]] Account own_account(const StepTimes& times);
  [[nodiscard]] TensorList packed(const Account& account) const;
  [[nodiscard]] Account unpacked(const Tensor& numbers) const;
  [[nodiscard]] std::vector<Account> gathered(Account mine);
  [[nodiscard]] Timeline joined(std::span<const Account> accounts, std::size_t pass) const;
  void add_copy(StepRecord& record, std::span<const Account> accounts, int copy) const;

  const Executor& executor_;
  ProcessGroup& group_;
  Graph graph_;
  std::vector<bool> on_first_machine_;  // by process
  std::chrono::steady_clock::time_point since_;
  std::size_t passes_ = 0;  // of the current step
  std::vector<double> started_;
  std::vector<Timeline> timelines_;  // reused: the first passes_ count
};

}  // namespace millrace
