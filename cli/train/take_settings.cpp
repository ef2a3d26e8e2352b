// What a run that is resumed takes from its checkpoint: every option that was not typed; and what
// a run notes of its pipeline for that.
#include <algorithm>
#include <map>
#include <sstream>

#include "cli/numbers.hpp"
#include "cli/train/checkpoint_flags.hpp"
#include "cli/train/feature_divisor.hpp"
#include "cli/train/options.hpp"
#include "cli/vocabulary.hpp"
#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/training/checkpoint.hpp"

namespace millrace::cli {

namespace {

using Facts = std::map<std::string, std::string>;

constexpr std::int64_t kMost = 1'000'000'000;

void set_untyped(CLI::App& verb, const std::string& name, const std::string& value) {
  CLI::Option* option = verb.get_option_no_throw(name);
  if (option == nullptr || option->count() > 0 || value.empty()) return;
  if (option->get_items_expected_max() > 1) {
    std::istringstream words(value);
    for (std::string word; words >> word;) option->add_result(word);
  } else {
    option->add_result(value);
  }
  option->run_callback();
}

bool is_typed(const CLI::App& verb, const std::string& name) {
  return verb.get_option(name)->count() > 0;
}

bool is_schedule(const std::string& name) {
  return std::ranges::any_of(schedules(),
                             [&](const ScheduleEntry& entry) { return entry.name == name; });
}

/// `--save ""` would save nothing without a word.
void require_values(const CLI::App& verb) {
  for (const CLI::Option* option : verb.get_options())
    for (const std::string& value : option->results())
      require(!value.empty(), option->get_name() + " \"\": must not be empty");
}

struct Found {
  std::string folder;
  Manifest manifest;
  Facts facts;
};

/// The newest checkpoint whose manifest and run.json can be read; the trainer compares the rest.
Found readable_at(const std::string& source) {
  const auto read = [](const std::string& folder) -> Found {
    return {folder, read_manifest_of(folder), run_facts_of(folder)};
  };
  const auto places = find_checkpoints(source);
  for (const CheckpointPlace& place : places) {
    try {
      return read(place.folder);
    } catch (const DataError&) {
      if (&place == &places.back()) throw;
    }
  }
  return read(source);
}

/// Settings of the optimizer have options only where it has them.
void take_rule(CLI::App& verb, const Manifest& manifest) {
  const std::string& kind = manifest.optimizer;
  const auto& settings = manifest.settings;
  const auto take = [&](const char* option, const char* setting) {
    const auto found = settings.find(setting);
    if (found != settings.end()) set_untyped(verb, option, found->second);
  };
  set_untyped(verb, "--optimizer", kind);
  take("--weight-decay", "optimizer.weight_decay");
  if (kind == "momentum" || kind == "nesterov") take("--momentum", "optimizer.momentum");
  const bool adaptive = kind == "adam" || kind == "adamw" || kind == "lamb";
  if (adaptive || kind == "lion") take("--beta1", "optimizer.beta1");
  if (adaptive || kind == "lion") take("--beta2", "optimizer.beta2");
  if (adaptive) take("--epsilon", "optimizer.epsilon");
  take("--lr", "learning_rate.base");
  take("--lr-schedule", "learning_rate.curve");
  take("--warmup", "learning_rate.warm_up");
  take("--loss-scale", "loss_scale");
  take("--max-skipped", "max_skipped");
  take("--parameters", "parameters");
  if (const auto clip = settings.find("clip_norm");
      clip != settings.end() && clip->second != "none")
    take("--clip-norm", "clip_norm");
}

/// Of the samples: other ones are other data, which the trainer would call so by its contents.
void take_lengths(CLI::App& verb, const std::string& saved) {
  CLI::Option& typed = *verb.get_option("--lengths");
  if (typed.count() > 0 && !saved.empty() && typed.as<std::string>() != saved)
    throw Mismatch("--lengths " + typed.as<std::string>() + ": the checkpoint was trained with " +
                   saved + ", and goes on with no other");
  set_untyped(verb, "--lengths", saved);
}

/// The micro-batches of an update in passes: as typed, else as the run had them that saved.
void share_out(CLI::App& verb, std::int64_t micro_batches, const std::string& passes) {
  CLI::Option& of_pass = *verb.get_option(flag("micro_batches"));
  CLI::Option& accumulate = *verb.get_option(flag("accumulate"));
  const auto copies = verb.get_option(flag("data_parallel"))->as<std::int64_t>();
  micro_batches /= std::max<std::int64_t>(copies, 1);
  const auto rest = [&](const CLI::Option& known) {
    const auto number = std::max<std::int64_t>(known.as<std::int64_t>(), 1);
    return std::to_string(std::max<std::int64_t>(micro_batches / number, 1));
  };
  if (verb.get_option("--plan")->count() > 0) return set_untyped(verb, flag("accumulate"), passes);
  if (of_pass.count() > 0) return set_untyped(verb, flag("accumulate"), rest(of_pass));
  set_untyped(verb, flag("accumulate"), passes);
  set_untyped(verb, flag("micro_batches"), rest(accumulate));
}

/// The options of the pipeline, which decide no bits, where they can be taken as they were: what is
/// typed may ask for another shape, for which some of them would make no sense.
class Pipeline {
 public:
  Pipeline(CLI::App& verb, const Facts& facts, int world)
      : verb_(verb),
        facts_(facts),
        shares_(world == 0 || (places() > 0 && places() % world == 0)),
        has_plan_(is_typed(verb, "--plan")),
        has_schedule_(has_plan_ || is_typed(verb, "--schedule")),
        has_shape_(has_schedule_ || is_typed(verb, flag("ranks")) ||
                   is_typed(verb, flag("chunks")) || is_typed(verb, flag("slices"))),
        alone_(world == 0) {}

  /// What was taken and is not as without a checkpoint, as a user would type it.
  std::string take() {
    if (shares_) take(flag("data_parallel"), "data_parallel", "1");
    if (!has_shape_ && !is_typed(verb_, flag("micro_batches")) && shares_ &&
        !fact("plan_file").empty())
      take("--plan", "plan_file");
    else if (!has_plan_)
      take_schedule();
    const bool keeps_stages = !has_shape_ && shares_;
    if (keeps_stages && !is_typed(verb_, "--plan")) take("--partition", "partition", "even");
    if (!has_plan_ && (keeps_stages || !fact("recompute").starts_with("stages:")))
      take("--recompute", "recompute", "none");
    take("--threads-per-rank", "threads_per_rank", "1");
    const bool has_copies = verb_.get_option(flag("data_parallel"))->as<std::int64_t>() > 1;
    if (alone_ && !has_copies) take("--executor", "executor", "flow-graph");
    if (has_copies) take("--shard-optimizer", "shard_optimizer");
    return taken_;
  }

 private:
  [[nodiscard]] std::string fact(const char* name) const {
    const auto found = facts_.find(name);
    return found == facts_.end() ? std::string() : found->second;
  }

  /// Ranks of all data-parallel replicas; 0: not known.
  [[nodiscard]] std::int64_t places() const {
    const auto number = [&](const char* name, std::int64_t otherwise) {
      const std::string text = fact(name);
      return text.empty() ? otherwise
                          : whole_number(std::string("run.json: ") + name, text, 1, kMost);
    };
    return number("ranks", 0) * number("data_parallel", 1);
  }

  void take_schedule() {
    const std::string program = fact("schedule");  // "zb-h1 p=2 m=4"
    const std::string name = program.substr(0, program.find(' '));
    if (!has_schedule_ && is_schedule(name)) {
      take_value("--schedule", name, "1f1b");
      take(flag("chunks"), "chunks");
      take(flag("slices"), "slices");
    }
    if (shares_) take(flag("ranks"), "ranks");
  }

  void take(const std::string& option, const char* name, const char* usual = "") {
    take_value(option, fact(name), usual);
  }

  void take_value(const std::string& option, const std::string& value, const char* usual) {
    if (value.empty() || is_typed(verb_, option)) return;
    if (value == usual) return;
    set_untyped(verb_, option, value);
    taken_ += (taken_.empty() ? "" : ", ") + option + (value == "true" ? "" : " " + value);
  }

  CLI::App& verb_;
  const Facts& facts_;
  bool shares_, has_plan_, has_schedule_, has_shape_, alone_;
  std::string taken_;
};

std::string take(CLI::App& verb, const Found& found, int world) {
  std::string taken = Pipeline(verb, found.facts, world).take();
  const Manifest& manifest = found.manifest;
  const auto setting = [&](const char* name) {
    const auto at = manifest.settings.find(name);
    return at == manifest.settings.end() ? std::string() : at->second;
  };
  const auto typed = [&](const char* option) { return is_typed(verb, option); };
  if (!typed("--dropout")) set_untyped(verb, "--model", manifest.model);
  const Facts& facts = found.facts;
  if (const auto data = facts.find("data"); data != facts.end())
    set_untyped(verb, "--data", data->second);
  if (const auto lengths = facts.find("lengths"); lengths != facts.end())
    take_lengths(verb, lengths->second);
  set_untyped(verb, "--precision", manifest.precision);
  set_untyped(verb, "--seed", std::to_string(manifest.counters.seed));
  if (!typed("--effective-batch")) set_untyped(verb, "--batch-size", setting("batch_size"));
  set_untyped(verb, "--last-batch", setting("last_batch"));
  if (const std::string order = setting("accumulation"); !order.empty())
    set_untyped(verb, flag("accumulate_order"), order == "tree" ? order : "ascending");
  const auto passes = facts.find("accumulate");
  share_out(verb,
            whole_number("the checkpoint's micro_batches", setting("micro_batches"), 1, kMost),
            passes == facts.end() ? "" : passes->second);
  if (!typed("--epochs") && !typed("--steps")) {
    const bool by_steps = setting("steps") != "0";
    set_untyped(verb, by_steps ? "--steps" : "--epochs", setting(by_steps ? "steps" : "epochs"));
  }
  take_rule(verb, manifest);
  return taken;
}

}  // namespace

void note_pipeline(const TrainFlags& flags, bool alone, TrainJob& job) {
  const std::vector<int>& bounds = job.options.boundaries;
  std::string cut;
  for (std::size_t i = 1; i + 1 < bounds.size(); ++i)
    cut += (cut.empty() ? "" : ",") + std::to_string(bounds[i]);
  auto& run = job.options.save.run;
  run["data_parallel"] = std::to_string(flags.data_parallel);
  run["partition"] = flags.partition == "even" || cut.empty() ? "even" : cut;
  run["recompute"] = to_string(job.options.recompute);
  run["threads_per_rank"] = std::to_string(flags.threads_per_rank);
  if (alone) run["executor"] = flags.executor;
  if (flags.shard_optimizer) run["shard_optimizer"] = "true";
  if (flags.chunks) run["chunks"] = std::to_string(*flags.chunks);
  if (flags.slices) run["slices"] = std::to_string(*flags.slices);
  if (!flags.plan.empty()) run["plan_file"] = flags.plan;
}

void take_settings(CLI::App& verb, CheckpointFlags& flags, int world) {
  require_values(verb);
  require(flags.resume != "auto" || !flags.save.empty(),
          "--resume auto: needs --save, whose folder it looks in");
  flags.from = flags.resume == "auto" ? flags.save : flags.resume;
  if (flags.resume == "auto" && find_checkpoints(flags.save).empty()) flags.from.clear();
  if (flags.from.empty()) return;
  const Found found = readable_at(flags.from);
  flags.from_step = found.manifest.counters.mini_batches;
  flags.taken = take(verb, found, world);
  if (const auto divisor = found.facts.find(kFeatureDivisor); divisor != found.facts.end())
    flags.divisor = divisor->second;
}

}  // namespace millrace::cli
