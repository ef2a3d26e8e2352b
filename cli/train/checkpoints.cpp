#include "cli/train/checkpoints.hpp"

#include <csignal>
#include <iostream>

#include "cli/exit_codes.hpp"
#include "cli/train/stop_signals.hpp"
#include "cli/verbs.hpp"
#include "millrace/core/error.hpp"
#include "millrace/training/file_system.hpp"
#include "millrace/training/weights_file.hpp"

namespace millrace::cli {

namespace {

void say(const std::string& sentence) {
  std::cerr << "millrace: " + sentence + "\n";
}

std::string tensors(std::int64_t count) {
  return std::to_string(count) + (count == 1 ? " tensor" : " tensors");
}

/// Rank 0 (`speaks`) says which were of another precision.
void take_weights(Trainer& trainer, const StartFlags& flags, bool speaks) {
  WeightsReport report;
  try {
    report = load_weights(trainer.state(), flags.weights, flags.narrow_weights);
  } catch (const StorageError& error) {
    throw InvalidArgument(std::string("--weights ") + error.what());
  } catch (const Mismatch& error) {
    throw Mismatch(std::string("--weights ") + error.what());
  }
  if (!speaks) return;
  for (const auto& [type, count] : report.converted)
    say("--weights " + flags.weights + ": " + tensors(count) + " of " + type +
        (type == "F64" ? " rounded to f32" : " widened to f32, exactly"));
}

/// Of the update that was not finished, if there is one.
std::string begun_update(const PartialUpdate& partial) {
  if (partial.micro_batches == 0) return {};
  return " and " + std::to_string(partial.micro_batches) +
         (partial.micro_batches == 1 ? " micro-batch" : " micro-batches") + " of the next";
}

}  // namespace

void begin_from(Trainer& trainer, const StartFlags& flags, bool speaks) {
  if (!flags.weights.empty()) take_weights(trainer, flags, speaks);
  if (flags.from.empty()) return;
  const ResumeReport report = trainer.resume(flags.from);
  if (!speaks) return;
  for (const DamagedCheckpoint& damaged : report.damaged) say("passed over: " + damaged.fault);
  say("resumed " + report.folder + (flags.taken.empty() ? "" : " with " + flags.taken));
  for (const std::string& changed : report.changed) say("changed " + changed);
  for (const std::string& warning : report.warnings) say(warning);
}

void SavedCheckpoints::add(const SaveReport& report, bool speaks) {
  const std::string what = "the checkpoint of step " + std::to_string(report.step);
  if (report.fault.empty()) {
    ++saved;
    newest = report.folder;
    if (speaks && report.after_failure) say(what + " was saved: " + report.folder);
    if (speaks && !report.warning.empty()) say("older checkpoints stay: " + report.warning);
    return;
  }
  ++failed;
  fault = report.fault;
  if (speaks) say(what + (report.after_failure ? " was not saved: " : " failed: ") + report.fault);
}

void require_saved(const SavedCheckpoints& checkpoints, bool speaks) {
  if (checkpoints.failed == 0) return;
  if (speaks)
    say(std::to_string(checkpoints.failed) +
        (checkpoints.failed == 1 ? " checkpoint was" : " checkpoints were") +
        " not saved, the last because " + checkpoints.fault);
  throw ExitCode{kFailed};
}

void require_update(const FitReport& fit, bool speaks) {
  std::int64_t updates = 0;
  for (const EpochReport& epoch : fit.epochs) updates += epoch.updates;
  if (updates > 0 || fit.skipped() == 0) return;
  if (speaks)
    say("nothing was trained: every step was skipped (" + std::to_string(fit.skipped()) + ")");
  throw ExitCode{kFailed};
}

void end_stopped(const TrainingCounters& counters,
                 const SavedCheckpoints& checkpoints,
                 bool speaks) {
  const int signal = StopSignals::received();
  if (speaks)
    say("stopped after step " + std::to_string(counters.mini_batches) +
        begun_update(counters.partial) +
        (checkpoints.newest.empty() ? ", nothing saved"
                                    : ", newest checkpoint " + checkpoints.newest));
  throw ExitCode{signal == SIGINT ? kInterrupted : kTerminated};
}

}  // namespace millrace::cli
