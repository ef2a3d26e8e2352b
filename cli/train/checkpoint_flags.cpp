// See checkpoint_flags.hpp.
#include "cli/train/checkpoint_flags.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <ctime>
#include <unistd.h>

#include "cli/numbers.hpp"
#include "cli/train/feature_divisor.hpp"
#include "cli/train/refusals.hpp"
#include "cli/vocabulary.hpp"
#include "millrace/core/error.hpp"
#include "millrace/training/checkpoint.hpp"

namespace millrace::cli {

namespace {

constexpr std::int64_t kMost = 1'000'000'000;

/// "50" is steps, "30s" is seconds.
void set_interval(const std::string& text, SaveOptions& options) {
  std::int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  const bool seconds = rest != end && std::string_view(rest, end) == "s";
  require(
      error == std::errc() && (rest == end || seconds) && number >= 1 && number <= 1'000'000'000,
      "--save-every " + text +
          ": expected mini-batches, as 50, or seconds, as 30s, from 1 to 1000000000");
  if (seconds)
    options.every_time = std::chrono::seconds(number);
  else
    options.every_steps = number;
}

void set_untyped(CLI::App& verb, const std::string& name, const std::string& value) {
  CLI::Option* option = verb.get_option_no_throw(name);
  if (option == nullptr || option->count() > 0 || value.empty()) return;
  option->add_result(value);
  option->run_callback();
}

struct Found {
  std::string folder;
  Manifest manifest;
};

/// The newest checkpoint whose manifest can be read; the trainer compares the rest.
Found newest_at(const std::string& source) {
  const auto places = find_checkpoints(source);
  for (const CheckpointPlace& place : places) {
    try {
      return {place.folder, read_manifest_of(place.folder)};
    } catch (const DataError&) {
      if (&place == &places.back()) throw;
    }
  }
  return {source, read_manifest_of(source)};
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

void take(CLI::App& verb, const Found& found) {
  const Manifest& manifest = found.manifest;
  const auto setting = [&](const char* name) {
    const auto at = manifest.settings.find(name);
    return at == manifest.settings.end() ? std::string() : at->second;
  };
  const auto typed = [&](const char* option) { return verb.get_option(option)->count() > 0; };
  if (!typed("--dropout")) set_untyped(verb, "--model", manifest.model);
  const auto facts = run_facts_of(found.folder);
  if (const auto data = facts.find("data"); data != facts.end())
    set_untyped(verb, "--data", data->second);
  if (const auto lengths = facts.find("lengths"); lengths != facts.end())
    take_lengths(verb, lengths->second);
  set_untyped(verb, "--precision", manifest.precision);
  set_untyped(verb, "--seed", std::to_string(manifest.counters.seed));
  set_untyped(verb, "--batch-size", setting("batch_size"));
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
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

/// "2031-05-06T07:08:09Z".
std::string now() {
  const std::time_t time = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

}  // namespace

void add_checkpoint_flags(CLI::App& verb, CheckpointFlags& flags) {
  verb.add_option(
      "--save",
      flags.save,
      "Folder of checkpoints: one at the end, on SIGTERM and SIGINT, when a step fails in which "
      "all ranks live, and as --save-every says");
  verb.add_option("--save-every", flags.save_every, "Mini-batches, as 50, or seconds, as 30s");
  verb.add_option("--keep", flags.keep, "How many of the newest checkpoints stay")
      ->capture_default_str();
  verb.add_option("--keep-every",
                  flags.keep_every,
                  "Also keep those whose step is a multiple of this (0: none)")
      ->capture_default_str();
  verb.add_option("--resume",
                  flags.resume,
                  "Go on from a checkpoint, the newest of a folder, or auto: the newest of --save, "
                  "if it has any; options that are not typed are taken from it");
  verb.add_option("--weights", flags.weights, "Begin with the weights of this safetensors file");
}

void take_settings(CLI::App& verb, CheckpointFlags& flags) {
  require(flags.resume != "auto" || !flags.save.empty(),
          "--resume auto: needs --save, whose folder it looks in");
  flags.from = flags.resume == "auto" ? flags.save : flags.resume;
  if (flags.resume == "auto" && find_checkpoints(flags.save).empty()) flags.from.clear();
  if (flags.from.empty()) return;
  const Found found = newest_at(flags.from);
  flags.from_step = found.manifest.counters.mini_batches;
  take(verb, found);
  flags.divisor = run_facts_of(found.folder)[kFeatureDivisor];
}

SaveOptions save_options(const CheckpointFlags& flags,
                         const std::string& data,
                         const std::string& lengths) {
  require(flags.weights.empty() || flags.resume.empty(),
          "--weights " + flags.weights + ": a checkpoint has weights; leave out --resume or this");
  require_count("--keep", flags.keep, 1'000'000);
  require(flags.keep_every >= 0,
          "--keep-every " + std::to_string(flags.keep_every) + ": must be at least 0");
  require(flags.save_every.empty() || !flags.save.empty(),
          "--save-every " + flags.save_every + ": needs --save, which names the folder");
  SaveOptions options;
  options.folder = flags.save;
  options.keep = static_cast<int>(flags.keep);
  options.keep_every = flags.keep_every;
  if (!flags.save_every.empty()) set_interval(flags.save_every, options);
  options.run = {{"data", data}, {"lengths", lengths}, {"host", host_name()}, {"began", now()}};
  return options;
}

}  // namespace millrace::cli
