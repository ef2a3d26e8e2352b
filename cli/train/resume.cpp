// The options that a resumed run takes from its checkpoint: all that are not given.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <sstream>

#include "cli/numbers.hpp"
#include "cli/train/options.hpp"
#include "cli/vocabulary.hpp"
#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/training/checkpoint.hpp"

namespace millrace::cli {

namespace {

using Facts = std::map<std::string, std::string>;

constexpr std::int64_t kMost = 1'000'000'000;

bool is_given(const CLI::App& subcommand, const std::string& name) {
  return subcommand.get_option(name)->count() > 0;
}

void set(CLI::App& subcommand, const std::string& name, const std::string& value) {
  CLI::Option* option = subcommand.get_option_no_throw(name);
  if (option == nullptr || value.empty()) return;
  std::istringstream words(option->get_items_expected_max() > 1 ? value : "");
  std::vector<std::string> values;
  for (std::string word; words >> word;) values.push_back(word);
  set_option(*option, values.empty() ? std::vector{value} : values);
}

std::string value_in(const Facts& facts, const std::string& name) {
  const auto found = facts.find(name);
  return found == facts.end() ? std::string() : found->second;
}

bool is_schedule(const std::string& name) {
  return std::ranges::any_of(schedules(),
                             [&](const ScheduleEntry& entry) { return entry.name == name; });
}

/// `--save ""` would save nothing without a message.
void require_values(const CLI::App& subcommand) {
  for (const CLI::Option* option : subcommand.get_options())
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
  return read(resolve_best(source));
}

/// A job that was started again continues from what it saved, unless that is older than what it was
/// given to resume.
void take_own_checkpoint(StartFlags& flags, const std::string& save) {
  if (flags.attempt == 0) return;
  const auto places = find_checkpoints(save);
  if (places.empty()) return;
  const bool gives = !flags.resume.empty() && flags.resume != "auto";
  if (gives && places.front().step <= readable_at(flags.resume).manifest.counters.mini_batches)
    return;
  flags.resume = "auto";
  flags.weights.clear();
  flags.narrow_weights = false;
}

/// Other samples are other data, which the trainer would only find by their contents.
void take_lengths(CLI::App& subcommand, const std::string& saved) {
  const CLI::Option& given = *subcommand.get_option("--lengths");
  if (given.count() > 0 && !saved.empty() && given.as<std::string>() != saved)
    throw Mismatch(fmt::format(
        "--lengths {}: the checkpoint was trained with {}", given.as<std::string>(), saved));
  set(subcommand, "--lengths", saved);
}

/// The micro-batches of an update in passes: as given, else as in the run that saved.
void share_out(CLI::App& subcommand, std::int64_t micro_batches, const std::string& passes) {
  const auto value = [&](const std::string& name) {
    return std::max<std::int64_t>(subcommand.get_option(name)->as<std::int64_t>(), 1);
  };
  micro_batches /= value(flag("data_parallel"));
  const auto rest = [&](const std::string& name) {
    return std::to_string(std::max<std::int64_t>(micro_batches / value(name), 1));
  };
  const std::string of_pass = flag("micro_batches"), accumulate = flag("accumulate");
  const bool has_plan = is_given(subcommand, "--plan");
  if (!has_plan && is_given(subcommand, of_pass)) return set(subcommand, accumulate, rest(of_pass));
  set(subcommand, accumulate, passes);
  if (has_plan) return;
  set(subcommand, of_pass, rest(accumulate));
}

/// Ranks of all data-parallel replicas; 0: not known.
std::int64_t ranks_in(const Facts& facts) {
  const auto number = [&](const std::string& name, std::int64_t otherwise) {
    const std::string text = value_in(facts, name);
    return text.empty() ? otherwise : whole_number("run.json: " + name, text, 1, kMost);
  };
  return number("ranks", 0) * number("data_parallel", 1);
}

/// The options of the pipeline, which affect no bits. A given option may ask for another shape, for
/// which some of them make no sense. Returns those that were set and are not defaults, as a user
/// would type them.
std::string take_pipeline(CLI::App& subcommand, const Facts& facts, int world) {
  std::vector<std::string> taken;
  const auto given = [&](const std::string& option) { return is_given(subcommand, option); };
  const auto fact = [&](const char* name) { return value_in(facts, name); };
  const auto take = [&](const std::string& option, const std::string& value, const char* preset) {
    if (value.empty() || value == preset || given(option)) return;
    set(subcommand, option, value);
    taken.push_back(value == "true" ? option : option + " " + value);
  };
  const std::int64_t ranks = ranks_in(facts);
  const bool shares = world == 0 || (ranks > 0 && ranks % world == 0);
  const bool has_plan = given("--plan"), has_schedule = has_plan || given("--schedule");
  const bool has_shape =
      has_schedule || given(flag("ranks")) || given(flag("chunks")) || given(flag("slices"));
  const bool keeps_stages = !has_shape && shares;
  const std::string program = fact("schedule");  // "zb-h1 p=2 m=4"
  const std::string name = program.substr(0, program.find(' '));
  if (shares) take(flag("data_parallel"), fact("data_parallel"), "1");
  if (keeps_stages && !given(flag("micro_batches"))) take("--plan", fact("plan_file"), "");
  if (!given("--plan")) {
    if (!has_schedule && is_schedule(name)) {
      take("--schedule", name, "1f1b");
      take(flag("chunks"), fact("chunks"), "");
      take(flag("slices"), fact("slices"), "");
    }
    if (shares) take(flag("ranks"), fact("ranks"), "");
    if (keeps_stages) take("--partition", fact("partition"), "even");
  }
  if (!has_plan && (keeps_stages || !fact("recompute").starts_with("stages:")))
    take("--recompute", fact("recompute"), "none");
  take("--threads-per-rank", fact("threads_per_rank"), "1");
  const bool has_replicas = subcommand.get_option(flag("data_parallel"))->as<std::int64_t>() > 1;
  if (has_replicas)
    take("--shard-optimizer", fact("shard_optimizer"), "");
  else if (world == 0)
    take("--executor", fact("executor"), "flow-graph");
  return fmt::format("{}", fmt::join(taken, ", "));
}

/// The settings of the manifest, by the rules between options.
void take_rows(CLI::App& subcommand, const Manifest& manifest) {
  const auto given = [&](const char* option) { return is_given(subcommand, option); };
  set(subcommand, "--optimizer", manifest.optimizer);
  const auto optimizer = subcommand.get_option("--optimizer")->as<std::string>();
  SettingValues saved = settings_in(manifest.settings, optimizer_kind(optimizer));
  saved["seed"] = std::to_string(manifest.counters.seed);
  const std::string order = value_in(manifest.settings, "accumulation");
  if (!order.empty()) saved["accumulate_order"] = order == "tree" ? order : "ascending";
  saved.erase(saved["steps"] == "0" ? "steps" : "epochs");
  if (given("--effective-batch")) saved.erase("batch_size");
  if (given("--epochs") || given("--steps")) {
    saved.erase("steps");
    saved.erase("epochs");
  }
  for (const Setting& row : settings())
    if (const auto value = saved.find(row.name); value != saved.end() && row.is_in(kInFlags))
      set(subcommand, "--" + row.flag_name(), value->second);
}

std::string take(CLI::App& subcommand, const Found& found, int world) {
  const Manifest& manifest = found.manifest;
  std::string taken = take_pipeline(subcommand, found.facts, world);
  if (!is_given(subcommand, "--dropout")) set(subcommand, "--model", manifest.model);
  set(subcommand, "--data", value_in(found.facts, "data"));
  take_lengths(subcommand, value_in(found.facts, "lengths"));
  set(subcommand, "--validation", value_in(found.facts, "validation"));
  for (const std::string_view name : kOfValidation)
    if (name != "keep_best" || is_given(subcommand, flag("save_folder")))
      set(subcommand, flag(name), value_in(found.facts, std::string(name)));
  set(subcommand, "--precision", manifest.precision);
  share_out(
      subcommand,
      whole_number(
          "the checkpoint's micro_batches", value_in(manifest.settings, "micro_batches"), 1, kMost),
      value_in(found.facts, "accumulate"));
  take_rows(subcommand, manifest);
  return taken;
}

/// Of a weights file; empty if it cannot be read: what loads all of it reports the fault.
std::string divisor_in(const std::string& weights) {
  try {
    FileSystem files;
    const Tensor contents = files.read(weights, ~std::uint64_t{0});
    const Safetensors read = read_safetensors(
        {static_cast<const std::byte*>(contents.data()), contents.bytes()}, weights);
    return value_in(read.metadata, kFeatureDivisor);
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

float divisor_of(const StartFlags& flags) {
  const std::string text = flags.weights.empty() ? flags.divisor : divisor_in(flags.weights);
  return text.empty() ? 0.0F : static_cast<float>(decimal(kFeatureDivisor, text, 0));
}

void take_settings(CLI::App& subcommand, StartFlags& flags, int world) {
  require_values(subcommand);
  SettingValues given = given_settings(subcommand);
  const std::string& save = given["save_folder"];
  require((flags.resume != "auto" && flags.resume != "best") || !save.empty(),
          fmt::format("--resume {}: needs --save, whose folder it looks in", flags.resume));
  if (flags.resume == "best") flags.resume = save + "/best";
  if (!save.empty()) take_own_checkpoint(flags, save);
  flags.from = flags.resume == "auto" ? save : flags.resume;
  if (flags.resume == "auto" && find_checkpoints(save).empty()) flags.from.clear();
  if (flags.from.empty()) return;
  const Found found = readable_at(flags.from);
  flags.from_step = found.manifest.counters.mini_batches;
  flags.taken = take(subcommand, found, world);
  flags.divisor = value_in(found.facts, kFeatureDivisor);
}

}  // namespace millrace::cli
