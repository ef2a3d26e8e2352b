// What a trainer saves and resumes: the manifest of its state, and the checkpoints of fit().
#include "training/saving.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/text.hpp"
#include "millrace/scheduler/plan/verify.hpp"
#include "millrace/training/settings.hpp"
#include "millrace/transport/endpoint.hpp"
#include "training/checkpoint/resume.hpp"
#include "training/checkpoint/run_facts.hpp"
#include "training/trainer_state.hpp"

namespace millrace {
namespace {

/// Also as the cause of a step's failure.
bool caused_by_lost_peer(const std::exception& error) {
  if (dynamic_cast<const PeerLost*>(&error) != nullptr) return true;
  if (dynamic_cast<const PeerHangs*>(&error) != nullptr) return true;
  try {
    std::rethrow_if_nested(error);
  } catch (const std::exception& cause) {
    return caused_by_lost_peer(cause);
  } catch (...) {
    return false;
  }
  return false;
}

/// Frees the lock of a folder at the end of a scope.
class Released {
 public:
  explicit Released(Saver* saver) : saver_(saver) {}
  Released(const Released&) = delete;
  Released& operator=(const Released&) = delete;
  ~Released() {
    if (saver_ != nullptr) saver_->release();
  }

 private:
  Saver* saver_;
};

/// Waits for a run that is ending and still saves in the folder, which is locked as long as what
/// this returns lives. A folder that is not there or cannot be locked is a matter of fit(). All
/// processes hear the same.
std::unique_ptr<CheckpointFolder> awaited(const SaveOptions& options,
                                          FileSystem& files,
                                          ProcessGroup& group) {
  if (options.folder.empty()) return nullptr;
  auto folder = std::make_unique<CheckpointFolder>(whole_path(options.folder), files);
  std::string holder;
  try {
    if (group.rank() == 0 && files.exists(folder->root())) {
      holder = folder->lock("that resumes", options.lock_wait);
      if (holder.empty()) folder->clear();  // a finished run saves no more, which would do it
    }
  } catch (const StorageError&) {
    holder.clear();
  }
  holder = group.gather(holder, Label::Checkpoint).front();
  if (!holder.empty()) throw SaveFailed(holder);
  return folder;
}

std::string tied_in(const Shape& shape) {
  std::vector<std::string> ties;
  for (const StageTie& tie : shape.ties) {
    std::vector<std::string> names;
    for (const StageWeight& weight : tie.weights) names.push_back(weight.name);
    ties.push_back(fmt::format("{}", fmt::join(names, " = ")));
  }
  return fmt::format("{}", fmt::join(ties, "; "));
}

/// Every schedule that accumulates in ascending order gives the same bits, and all do by the tree;
/// any other has its own, with messages or without.
std::string order_of(const Program& program, AccumulateOrder order, int copies) {
  if (order == AccumulateOrder::Tree) return "tree";
  if (copies > 1) return fmt::format("of {} copies, {}", copies, order_of(program, order, 1));
  if (accumulation(program).ascending) return "ascending";
  return "as in plan " + plan_hash(compute_only(program));
}

}  // namespace

/// Without shards, which those who write them know.
Manifest Trainer::State::manifest() const {
  Manifest manifest;
  manifest.model = parts.model;
  manifest.precision = name_of(parts.precision);
  manifest.optimizer =
      options.step.custom_optimizer ? "custom" : std::string(name_of(options.step.optimizer.kind));
  manifest.data = data_digest;
  manifest.counters = store.counters();
  manifest.settings = saved_settings(with_loss_scale(options, parts.precision));
  const Program& program = parts.executor->program();
  const int replicas = parts.seat.grid().data();
  manifest.settings["accumulation"] = order_of(program, options.step.accumulate_order, replicas);
  manifest.settings["micro_batches"] =
      std::to_string(replicas * options.step.accumulate * program.shape.micro_batches);
  manifest.settings["slices"] = std::to_string(program.shape.slices);
  manifest.settings["tied"] = tied_in(program.shape);
  return manifest;
}

/// The user's, and how the micro-batches of an update are shared out.
std::map<std::string, std::string> Trainer::State::run_facts() const {
  std::map<std::string, std::string> facts = options.save.run;
  if (options.step.accumulate > 1) facts["accumulate"] = std::to_string(options.step.accumulate);
  return facts;
}

bool Trainer::State::is_resumed_here() const {
  return !options.save.folder.empty() &&
         loaded.folder.starts_with(path_in(whole_path(options.save.folder), ""));
}

Saver& Trainer::State::checkpoints() {
  if (!saver)
    saver = std::make_unique<Saver>(store,
                                    group,
                                    options.save,
                                    loaded,
                                    write_run(parts.executor->program(), group.size(), run_facts()),
                                    optimizer_shards());
  return *saver;
}

Trainer::Saving::Saving(State& trainer, const std::function<void(const SaveReport&)>& tell)
    : trainer_(trainer),
      tell_(tell),
      options_(trainer.options.save),
      last_(Clock::now()),
      saved_(moment_of(trainer.store.counters())) {
  if (options_.folder.empty()) return;
  trainer_.checkpoints().hold();
  head_ = trainer_.manifest();
  if (is_refused()) report_refusal();
}

Trainer::Saving::~Saving() {
  if (trainer_.saver) trainer_.saver->release();
}

bool Trainer::Saving::is_refused() const {
  return !trainer_.checkpoints().refusal().empty();
}

void Trainer::Saving::report_refusal() {
  SaveReport report;
  report.step = head_.counters.mini_batches;
  report.fault = trainer_.checkpoints().refusal();
  report.after_failure = is_failing_;
  if (tell_) tell_(report);
}

void Trainer::Saving::note_boundary() {
  head_.counters = trainer_.store.counters();
}

void Trainer::Saving::after_step(bool is_time) {
  if (options_.folder.empty()) return;
  advance(false);
  const std::int64_t step = trainer_.store.counters().mini_batches;
  if (is_time || (options_.every_steps && step % *options_.every_steps == 0)) {
    note_boundary();
    begin();
  }
}

bool Trainer::Saving::is_time() const {
  return !options_.folder.empty() && options_.every_time && trainer_.group.rank() == 0 &&
         Clock::now() - last_ >= *options_.every_time;
}

void Trainer::Saving::begin() {
  advance(true);
  saved_ = moment_of(head_.counters);
  last_ = Clock::now();
  if (is_refused()) {  // until now; another attempt
    trainer_.checkpoints().release();
    trainer_.checkpoints().hold();
    if (is_refused()) return report_refusal();
  }
  trainer_.checkpoints().begin(head_);
  if (!options_.background) advance(true);
}

void Trainer::Saving::advance(bool wait) {
  Saver& saver = trainer_.checkpoints();
  if (!saver.busy()) return;
  auto report = saver.advance(wait);
  if (!report) return;
  report->after_failure = is_failing_ && report->step == head_.counters.mini_batches;
  if (tell_) tell_(*report);
  if (!report->fault.empty() && !is_failing_ && options_.errors == SaveErrors::Throw)
    throw SaveFailed("the checkpoint of step " + std::to_string(report->step) +
                     " was not saved: " + report->fault);
}

void Trainer::Saving::finish() {
  if (options_.folder.empty()) return;
  note_boundary();
  if (saved_ != moment_of(head_.counters)) begin();
  advance(true);
}

/// In all processes alike, behind the same step: they save as at any end.
void Trainer::Saving::diverged() {
  is_failing_ = true;
  finish();
}

/// Saves the state at the last boundary, if it still stands.
void Trainer::Saving::failed(const std::exception& error) {
  if (options_.folder.empty()) return;
  is_failing_ = true;
  if (is_refused()) return report_refusal();
  if (trainer_.group.size() == 1) return failed_alone();
  failed_among_others(error);
}

/// Of an update that was stopped before the sums are gone: its checkpoint is there still.
void Trainer::Saving::failed_alone() {
  const bool is_whole = !trainer_.is_updating && head_.counters.partial.micro_batches == 0;
  if (is_whole && saved_ != moment_of(head_.counters)) begin();
  advance(true);
}

/// They may have stopped anywhere, and hear no more from each other: the votes say whether all
/// stand behind the same step. Without one that is gone there is nothing to save.
void Trainer::Saving::failed_among_others(const std::exception& error) {
  trainer_.group.cancel(error.what());
  const std::string refusal = trainer_.is_updating ? "its update had begun" : "";
  const SaveReport report =
      trainer_.checkpoints().save_apart(head_, refusal, !caused_by_lost_peer(error));
  if (tell_) tell_(report);
}

SaveReport Trainer::save() {
  Saver& saver = state_->checkpoints();
  const bool was_held = saver.is_held();
  saver.hold();
  const Released released(was_held ? nullptr : &saver);
  if (!saver.refusal().empty()) throw StorageError(saver.refusal());
  saver.begin(state_->manifest());
  return *saver.advance(true);
}

bool Trainer::is_finished() const {
  const TrainingCounters& counters = state_->store.counters();
  if (!state_->goes_on) return false;
  const ValidationRecord& validation = counters.validation;
  if (!early_stop(options().validation, validation).empty()) return true;
  // The one after the last step was stopped.
  if (!validation.data.empty() && validation.step != counters.mini_batches &&
      is_validation_due(options().validation,
                        counters.mini_batches,
                        counters.position.epoch,
                        counters.position.batch))
    return false;
  if (const auto steps = options().fit.steps)
    return counters.mini_batches - counters.fit_mini_batches >= *steps;
  return counters.position.epoch >= options().fit.epochs;
}

ResumeReport Trainer::resume(const std::string& path) {
  const std::shared_ptr<FileSystem> files =
      options().save.files ? options().save.files : std::make_shared<FileSystem>();
  const auto locked = awaited(options().save, *files, state_->group);
  Resumed resumed = millrace::resume(state_->store,
                                     state_->group,
                                     state_->manifest(),
                                     {state_->shape.micro_batches, state_->shape.replicas()},
                                     path,
                                     *files);
  state_->saver.reset();  // what it keeps depends on what was loaded
  state_->loaded = resumed.report;
  state_->data_digest = resumed.data;
  state_->expected_data = std::move(resumed.data);
  state_->goes_on = true;
  if (!state_->is_resumed_here())  // the best checkpoint stays in the other folder
    state_->count([](TrainingCounters& counters) { counters.validation.best_step = 0; });
  return std::move(resumed.report);
}

}  // namespace millrace
