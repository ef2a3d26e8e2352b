// Naming the rank whose work outside the program failed.
#include "run/rank_work.hpp"

#include <string>

namespace millrace::run {

void RankWork::rethrow() const {
  for (std::size_t i = 0; i < failures_.size(); ++i) {
    if (failures_[i] == nullptr) continue;
    const Rank rank{static_cast<int>(i)};
    const std::string where = "optimizer step failed on rank " + std::to_string(i) + ": ";
    Action action;
    action.op = Op::OptimizerStep;
    try {
      std::rethrow_exception(failures_[i]);
    } catch (const StepError&) {
      throw;
    } catch (const std::exception& cause) {
      throw StepError(where + cause.what(), rank, action);
    } catch (...) {
      throw StepError(where + "an unknown exception", rank, action);
    }
  }
}

}  // namespace millrace::run
