// See checkpoints.hpp.
#include "cli/train/checkpoints.hpp"

#include <csignal>
#include <iostream>
#include <set>

#include "cli/exit_codes.hpp"
#include "cli/train/stop_signals.hpp"
#include "cli/verbs.hpp"
#include "millrace/core/error.hpp"
#include "millrace/training/file_system.hpp"
#include "millrace/training/safetensors.hpp"

namespace millrace::cli {

namespace {

void say(const std::string& sentence) {
  std::cerr << "millrace: " + sentence + "\n";
}

/// Every parameter of the model, and nothing else.
void take_weights(Trainer& trainer, const std::string& path) {
  FileSystem files;
  Tensor contents;
  try {
    contents = files.read(path, ~std::uint64_t{0});
  } catch (const StorageError& error) {
    throw InvalidArgument(std::string("--weights ") + error.what());
  }
  const Safetensors weights =
      read_safetensors({static_cast<const std::byte*>(contents.data()), contents.bytes()}, path);
  TrainingState& state = trainer.state();
  const std::set<std::string> known(state.names().begin(), state.names().end());
  for (const SafetensorsEntry& entry : weights.entries)
    if (!known.contains(entry.name))
      throw Mismatch("--weights " + path + ": has '" + entry.name + "', which the model has not");
  for (const std::string& name : known) {
    const SafetensorsEntry* entry = weights.find(name);
    if (entry == nullptr)
      throw Mismatch("--weights " + path + ": has no '" + name + "', which the model has");
    if (!state.hosts(name)) continue;
    try {
      state.write(name, entry->tensor());
    } catch (const InvalidArgument& error) {
      throw Mismatch("--weights " + path + ": " + error.what());
    }
  }
}

/// Of the update that was not finished, if there is one.
std::string begun_update(const PartialUpdate& partial) {
  if (partial.micro_batches == 0) return {};
  return " and " + std::to_string(partial.micro_batches) +
         (partial.micro_batches == 1 ? " micro-batch" : " micro-batches") + " of the next";
}

}  // namespace

void begin_from(Trainer& trainer, const CheckpointFlags& flags, bool speaks) {
  if (!flags.weights.empty()) take_weights(trainer, flags.weights);
  if (flags.from.empty()) return;
  const ResumeReport report = trainer.resume(flags.from);
  if (!speaks) return;
  for (const DamagedCheckpoint& damaged : report.damaged) say("passed over: " + damaged.fault);
  say("resumed " + report.folder);
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
  if (speaks) say(what + (report.after_failure ? " was not saved: " : " failed: ") + report.fault);
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
