// The flags of `millrace train` and their configuration file.
#include <sstream>

#include "cli/files.hpp"
#include "cli/train/options.hpp"
#include "cli/usage.hpp"
#include "cli/vocabulary.hpp"
#include "millrace/core/error.hpp"

namespace millrace::cli {

namespace {

/// What the pipeline is, and how a mini-batch goes through it.
void add_pipeline_flags(CLI::App& verb, TrainFlags& flags) {
  verb.add_option(
      cli::flags("ranks"), flags.ranks, "Ranks p of the pipeline (this machine's cores, 2 to 4)");
  verb.add_option(
          cli::flags("micro_batches"), flags.micro_batches, "Micro-batches m per mini-batch")
      ->capture_default_str();
  verb.add_option(cli::flags("data_parallel"),
                  flags.data_parallel,
                  "Copies d of the pipeline, which share the mini-batches out; each runs -m "
                  "micro-batches a pass")
      ->capture_default_str();
  verb.add_flag("--shard-optimizer",
                flags.shard_optimizer,
                "Spread what the optimizer keeps over the copies (-d); the same bits");
  add_batch_flags(verb, flags.batch);
  verb.add_option("--schedule", flags.schedule, "A name of millrace list")->capture_default_str();
  verb.add_option(cli::flags("chunks"), flags.chunks, "Stages per rank, for chunked schedules");
  verb.add_option(
      cli::flags("slices"), flags.slices, "Slices per sequence, for schedules that cut them");
  verb.add_option(
      "--plan", flags.plan, "Run this plan file or schedule CSV instead of a named schedule");
  verb.add_option("--partition", flags.partition, "even, time, or first layers B1,B2,...")
      ->capture_default_str();
  verb.add_option("--executor", flags.executor, "flow-graph, ranks or sequential")
      ->capture_default_str();
  verb.add_option("--threads-per-rank",
                  flags.threads_per_rank,
                  "Threads that share each pass of a rank; the bits are the same for any number")
      ->capture_default_str();
  verb.add_flag("--recompute{all}",
                flags.recompute,
                "Run layers again instead of keeping their stash: =all, =stages:LIST, =every-K, "
                "=selective:LAYERS, =auto:BYTES");
}

}  // namespace

void add_train_flags(CLI::App& verb, TrainFlags& flags) {
  verb.add_option(
          "--model",
          flags.model,
          "mlp:IN-...-OUT[,relu|gelu|tanh][,norm[=layer|rms|batch]][,residual][,dropout=X] or "
          "conv:HxWxC-BLOCK-...-OUT[,relu|gelu|tanh][,norm=batch|group|none][,dropout=X] or "
          "gpt:layers=N,d=N,heads=N,context=N[,kv=N][,mlp=gelu|swiglu][,norm=layer|rms]"
          "[,pos=learned|rotary][,tied=no|yes][,dropout=X][,vocabulary=N]")
      ->capture_default_str();
  verb.add_option("--data",
                  flags.data,
                  "digits, csv:FILE (numbers, label last), idx:FOLDER, text or text:FILE[,bytes]")
      ->capture_default_str();
  verb.add_option("--lengths",
                  flags.lengths,
                  "Of samples of a text: fixed (windows of the model's context) or bucket (lines; "
                  "micro-batches of similar length, each padded to its own longest)")
      ->capture_default_str();
  add_pipeline_flags(verb, flags);
  verb.add_option("--epochs", flags.epochs, "Passes over the data (60)");
  verb.add_option("--steps", flags.steps, "Mini-batches in all, instead of --epochs");
  add_rule_flags(verb, flags.rule);
  verb.add_option("--precision",
                  flags.precision,
                  "f32, bf16 or f16: of activations, their gradients and the weights layers use")
      ->capture_default_str();
  verb.add_option("--dropout", flags.dropout, "Dropout behind every linear layer but the last");
  verb.add_option("--seed", flags.seed, "Of initial weights, split, shuffling, dropout")
      ->capture_default_str();
  verb.add_option("--last-batch", flags.last_batch, "update or drop")->capture_default_str();
  add_checkpoint_flags(verb, flags.checkpoints);
  add_watch_flags(verb, flags.watch);
  verb.add_option("--trace", flags.trace, "Write the last step for Perfetto and Chrome (JSON)");
  verb.add_option("--svg", flags.svg, "Write the last step as a picture");
  verb.add_option("--profile", flags.profile, "Write measured costs, for simulate --costs");
  verb.add_flag("--json", flags.json, "Print one JSON object at the end, progress to stderr");
  verb.add_option("--config", flags.config, "Read options from a TOML or INI file");
}

namespace {

/// An option that may be given often takes every value of a list; of another, such as a partition,
/// the list is one value with commas.
void add_values(CLI::Option& option, const std::vector<std::string>& values) {
  if (option.get_items_expected_max() > 1) {
    for (const std::string& value : values) option.add_result(value);
    return;
  }
  std::string joined;
  for (const std::string& value : values) joined += (joined.empty() ? "" : ",") + value;
  option.add_result(joined);
}

std::vector<CLI::ConfigItem> items_of(const std::string& file) {
  std::istringstream stream(read_file("--config", file, kConfigLimit));
  try {
    return CLI::ConfigTOML().from_config(stream);
  } catch (const CLI::Error& error) {
    throw InvalidArgument("--config " + file + ": " + error.what());
  }
}

}  // namespace

void read_config(CLI::App& verb, const std::string& file) {
  for (const CLI::ConfigItem& item : items_of(file)) {
    if (item.name == "++" || item.name == "--") continue;  // begin and end of a section
    const bool in_place =
        item.parents.empty() || (item.parents.size() == 1 && item.parents[0] == verb.get_name());
    CLI::Option* option = verb.get_option_no_throw("--" + item.name);
    require(in_place && option != nullptr && item.name != "config" && item.name != "help",
            "--config " + file + ": " + item.fullname() + ": not an option of " + verb.get_name() +
                suggested_option("--" + item.name, verb));
    if (option->count() > 0) continue;  // the command line wins
    try {
      add_values(*option, item.inputs);
      option->run_callback();
    } catch (const CLI::Error& error) {
      throw InvalidArgument("--config " + file + ": " + error.what());
    }
  }
}

}  // namespace millrace::cli
