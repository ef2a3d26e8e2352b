#include "cli/train/checkpoints.hpp"

#include <csignal>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <iostream>

#include "cli/exit_codes.hpp"
#include "cli/subcommands.hpp"
#include "cli/train/stop_signals.hpp"
#include "millrace/core/error.hpp"
#include "millrace/training/checkpoint.hpp"

namespace millrace::cli {

namespace {

void say(const std::string& message) {
  std::cerr << fmt::format("millrace: {}\n", message);
}

/// "2 tensors".
std::string counted(std::int64_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

/// Rank 0 (`prints`) reports the tensors of another precision.
void take_weights(Trainer& trainer, const StartFlags& flags, bool prints) {
  WeightsReport report;
  try {
    report = load_weights(trainer.state(), flags.weights, flags.narrow_weights);
  } catch (const StorageError& error) {
    throw InvalidArgument(fmt::format("--weights {}", error.what()));
  } catch (const Mismatch& error) {
    throw Mismatch(fmt::format("--weights {}", error.what()));
  }
  if (!prints) return;
  for (const auto& [type, count] : report.converted)
    say(fmt::format("--weights {}: {} of {} {} to f32{}",
                    flags.weights,
                    counted(count, "tensor"),
                    type,
                    type == "F64" ? "rounded" : "widened",
                    type == "F64" ? "" : ", exactly"));
}

/// Of the unfinished update, if there is one.
std::string begun_update(const PartialUpdate& partial) {
  if (partial.micro_batches == 0) return {};
  return fmt::format(" and {} micro-batch{} of the next",
                     partial.micro_batches,
                     partial.micro_batches == 1 ? "" : "es");
}

}  // namespace

void begin_from(Trainer& trainer, const StartFlags& flags, bool prints) {
  if (!flags.weights.empty()) take_weights(trainer, flags, prints);
  if (flags.from.empty()) return;
  const ResumeReport report = trainer.resume(flags.from);
  if (!prints) return;
  for (const DamagedCheckpoint& damaged : report.damaged) say("passed over: " + damaged.fault);
  say(fmt::format(
      "resumed {}{}{}", report.folder, flags.taken.empty() ? "" : " with ", flags.taken));
  if (!report.superseded.empty() && !trainer.options().save.folder.empty())
    say(fmt::format("newer checkpoints get the prefix superseded-: {}",
                    fmt::join(report.superseded, ", ")));
  for (const std::string& changed : report.changed) say("changed " + changed);
  for (const std::string& warning : report.warnings) say(warning);
}

void SavedCheckpoints::add(const SaveReport& report, bool prints) {
  const std::string what = fmt::format("the checkpoint of step {}", report.step);
  if (report.fault.empty()) {
    ++saved;
    newest = report.folder;
    if (prints && report.after_failure) say(fmt::format("{} was saved: {}", what, report.folder));
    if (prints && !report.warning.empty()) say("older checkpoints stay: " + report.warning);
    return;
  }
  ++failed;
  fault = report.fault;
  if (prints)
    say(fmt::format(
        "{} {}: {}", what, report.after_failure ? "was not saved" : "failed", report.fault));
}

void require_saved(const SavedCheckpoints& checkpoints, bool prints) {
  if (checkpoints.failed == 0) return;
  if (prints)
    say(fmt::format("{} {} not saved, the last because {}",
                    counted(checkpoints.failed, "checkpoint"),
                    checkpoints.failed == 1 ? "was" : "were",
                    checkpoints.fault));
  throw ExitCode{kFailed};
}

void require_update(const FitReport& fit, bool prints) {
  std::int64_t updates = 0;
  for (const EpochReport& epoch : fit.epochs) updates += epoch.updates;
  if (updates > 0 || fit.skipped() == 0) return;
  if (prints) say(fmt::format("nothing was trained: every step was skipped ({})", fit.skipped()));
  throw ExitCode{kFailed};
}

void end_stopped(const TrainingCounters& counters,
                 const SavedCheckpoints& checkpoints,
                 bool prints) {
  const int signal = StopSignals::received();
  if (prints)
    say(fmt::format("stopped after step {}{}, {}{}",
                    counters.mini_batches,
                    begun_update(counters.partial),
                    checkpoints.newest.empty() ? "nothing saved" : "newest checkpoint ",
                    checkpoints.newest));
  throw ExitCode{signal == SIGINT ? kInterrupted : kTerminated};
}

std::string newest_at(const std::string& path) {
  const auto places = find_checkpoints(path);
  return places.empty() ? resolve_best(path) : places.front().folder;
}

}  // namespace millrace::cli
