#include "cli/train/checkpoint_flags.hpp"

#include <array>
#include <charconv>
#include <chrono>
#include <ctime>
#include <unistd.h>

#include "cli/numbers.hpp"
#include "cli/train/refusals.hpp"
#include "millrace/core/error.hpp"

namespace millrace::cli {

namespace {

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
  verb.add_option("--save-errors",
                  flags.save_errors,
                  "When a checkpoint cannot be saved: stop, or continue and exit with 1 at the end")
      ->capture_default_str();
  verb.add_option("--keep", flags.keep, "How many of the newest checkpoints stay")
      ->capture_default_str();
  verb.add_option("--keep-every",
                  flags.keep_every,
                  "Also keep those whose step is a multiple of this (0: none)")
      ->capture_default_str();
  verb.add_option("--resume",
                  flags.resume,
                  "Go on from a checkpoint, the newest of a folder, or auto: the newest of --save, "
                  "if it has any; options that are not typed are taken from it. Waits up to 30 s "
                  "for a run that is ending and still saves in --save");
  verb.add_option("--weights",
                  flags.weights,
                  "Begin with the weights of this safetensors file, *.safetensors.index.json or "
                  "folder; bf16 and f16 become f32, exactly");
  verb.add_flag("--narrow-weights", flags.narrow_weights, "Round f64 of --weights to f32");
}

SaveOptions save_options(const CheckpointFlags& flags,
                         const std::string& data,
                         const std::string& lengths) {
  require(flags.weights.empty() || flags.resume.empty(),
          "--weights " + flags.weights + ": a checkpoint has weights; leave out --resume or this");
  require(!flags.narrow_weights || !flags.weights.empty(),
          "--narrow-weights: needs --weights, whose f64 it rounds");
  require(flags.save_errors == "stop" || flags.save_errors == "continue",
          "--save-errors " + flags.save_errors + ": must be stop or continue");
  require_count("--keep", flags.keep, 1'000'000);
  require(flags.keep_every >= 0,
          "--keep-every " + std::to_string(flags.keep_every) + ": must be at least 0");
  require(flags.save_every.empty() || !flags.save.empty(),
          "--save-every " + flags.save_every + ": needs --save, which names the folder");
  SaveOptions options;
  options.folder = flags.save;
  options.keep = static_cast<int>(flags.keep);
  options.keep_every = flags.keep_every;
  options.errors = flags.save_errors == "stop" ? SaveErrors::Throw : SaveErrors::Continue;
  if (!flags.save_every.empty()) set_interval(flags.save_every, options);
  options.run = {{"data", data}, {"lengths", lengths}, {"host", host_name()}, {"began", now()}};
  return options;
}

}  // namespace millrace::cli
