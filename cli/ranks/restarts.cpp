#include "cli/ranks/restarts.hpp"

#include <algorithm>
#include <fmt/format.h>

#include "cli/exit_codes.hpp"

namespace millrace::cli {

namespace {

/// Steps that are not known are never the same.
bool are_same(const JobFailure& a, const JobFailure& b) {
  return a.step && a.step == b.step && a.code == b.code && a.what == b.what;
}

std::chrono::milliseconds delay_after(int restarts) {
  constexpr int kDoublings = 16;  // more than from the first delay to the longest
  return std::min(kLongestDelay, kFirstDelay * (1 << std::min(restarts, kDoublings)));
}

std::string source_of(const JobFailure& failure, Continues continues) {
  if (continues == Continues::AsItsProgram)
    return "; the program continues from its own checkpoint, if it has one";
  if (continues == Continues::FromTheBeginning) return " from the beginning (no --save)";
  const std::int64_t kept = failure.progress.value_or(0);
  return kept > 0 ? fmt::format(" from step {}", kept) : " from the beginning (no checkpoint yet)";
}

/// Steps that the job had finished.
std::string repeated(const JobFailure& failure) {
  const std::int64_t steps =
      std::max<std::int64_t>(0, *failure.step - failure.progress.value_or(0));
  return fmt::format(", {} {} done again", steps, steps == 1 ? "step is" : "steps are");
}

}  // namespace

std::string restart_line(const JobFailure& failure,
                         int number,
                         std::chrono::milliseconds delay,
                         Continues continues) {
  const bool has_begun = failure.step.value_or(-1) >= 0;
  std::string place = failure.step ? " before its first step" : "";
  if (has_begun) place = fmt::format(" in step {}", *failure.step);
  return fmt::format("{}{}; restart {} in {} s{}{}",
                     failure.what,
                     place,
                     number,
                     static_cast<double>(delay.count()) / 1000,
                     source_of(failure, continues),
                     has_begun && continues != Continues::AsItsProgram ? repeated(failure) : "");
}

bool may_restart(int code, bool is_ours) {
  if (code == kLostPeer || code == kHang) return true;
  const auto ends = {kDone, kUsage, kCorruptData, kMismatch, kInterrupted, kTerminated};
  return !is_ours && std::ranges::find(ends, code) == ends.end();
}

RestartDecision decide_restart(const RestartHistory& history,
                               const JobFailure& failure,
                               int restarts) {
  RestartDecision decision{.history = history};
  RestartHistory& now = decision.history;
  now.same = history.last && are_same(*history.last, failure) ? history.same + 1 : 1;
  now.last = failure;
  if (failure.progress.value_or(0) > history.progress) {
    now.progress = *failure.progress;
    now.since_progress = 0;
  }
  if (failure.has_result)
    decision.why_not = "the training had ended, with its result";
  else if (now.same >= kSameFailures)
    decision.why_not = fmt::format("the same failure in the same step, {} times", now.same);
  else if (now.since_progress >= restarts)
    decision.why_not = fmt::format("{} {} without progress",
                                   now.since_progress,
                                   now.since_progress == 1 ? "restart" : "restarts");
  decision.restarts = decision.why_not.empty();
  decision.delay = delay_after(now.since_progress);
  if (decision.restarts) ++now.since_progress;
  return decision;
}

}  // namespace millrace::cli
