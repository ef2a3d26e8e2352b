// The flags of `millrace train` that are not in the table of settings.
#include <fmt/format.h>

#include "cli/train/options.hpp"
#include "cli/vocabulary.hpp"
#include "millrace/core/error.hpp"

namespace millrace::cli {

namespace {

void add_pipeline_flags(CLI::App& subcommand, TrainFlags& flags) {
  subcommand.add_option(
      cli::flags("ranks"), flags.ranks, "Ranks p of the pipeline (this machine's cores, 2 to 4)");
  subcommand
      .add_option(cli::flags("micro_batches"), flags.micro_batches, "Micro-batches m of a pass")
      ->capture_default_str();
  subcommand
      .add_option(cli::flags("data_parallel"),
                  flags.data_parallel,
                  "Data-parallel replicas d; each runs -m micro-batches per pass")
      ->capture_default_str();
  subcommand.add_option("--schedule", flags.schedule, "A name of millrace list")
      ->capture_default_str();
  subcommand.add_option(
      cli::flags("chunks"), flags.chunks, "Stages per rank, for chunked schedules");
  subcommand.add_option(
      cli::flags("slices"), flags.slices, "Slices per sequence, for schedules with slices");
  subcommand.add_option(
      "--plan", flags.plan, "Run this plan file or schedule CSV instead of a named schedule");
  subcommand.add_option("--partition", flags.partition, "even, time, or first layers B1,B2,...")
      ->capture_default_str();
}

void add_batch_flags(CLI::App& subcommand, TrainFlags& flags) {
  subcommand.add_option(
      "--effective-batch",
      flags.effective_batch,
      "As --batch-size, of micro-batches with exactly --micro-batch-size samples");
  subcommand.add_option("--micro-batch-size",
                        flags.micro_batch_size,
                        "Samples of each micro-batch; without it they share the mini-batch");
  subcommand.add_option("--scale-lr-with-batch",
                        flags.scale_lr,
                        "BASE[:linear|:sqrt]: --lr is for mini-batches of BASE samples");
}

void add_start_flags(CLI::App& subcommand, StartFlags& flags) {
  subcommand.add_option(
      "--resume",
      flags.resume,
      "Continue from a checkpoint, the newest of a folder, DIR/best, best: the best of --save, or "
      "auto: its newest, if any; "
      "options that are not given come from it. Waits up to 30 s for a run that still saves there");
  subcommand.add_option("--weights",
                        flags.weights,
                        "Begin with the weights of this safetensors file, *.safetensors.index.json "
                        "or folder; bf16 and f16 become f32, exactly");
  subcommand.add_flag("--narrow-weights", flags.narrow_weights, "Round f64 of --weights to f32");
}

void add_output_flags(CLI::App& subcommand, TrainFlags& flags) {
  subcommand.add_option(
      "--log",
      flags.watch.log,
      "Write a record of every step to FILE.jsonl or FILE.csv: loss, norm, rates, "
      "and every rank's time by cause; --resume continues it");
  subcommand.add_option("--metrics",
                        flags.watch.metrics,
                        "Keep FILE.prom up to date in Prometheus' text format, replaced whole");
  subcommand.add_option("--report",
                        flags.watch.report,
                        "Write the run as a page, FILE.html: curves, every rank's time by cause, "
                        "the last step's timeline and the bottleneck");
  subcommand.add_flag("--inspect-gradients",
                      flags.watch.inspect_gradients,
                      "Show the first step's gradients by layer: norm, zeros, not finite");
  subcommand.add_option(
      "--trace", flags.trace, "Write the last step for Perfetto and Chrome (JSON)");
  subcommand.add_option("--svg", flags.svg, "Write the last step as a diagram");
  subcommand.add_option("--profile", flags.profile, "Write measured costs, for simulate --costs");
  subcommand.add_flag("--json", flags.json, "Print one JSON object at the end, progress to stderr");
  subcommand.add_flag(
      "--dry-run",
      flags.dry_run,
      "Check data, folders and plan, print model, cut, schedule, steps and predicted "
      "memory, and exit");
  subcommand.add_option("--config", flags.config, "Read options from a TOML or INI file");
}

void require_ending(const char* option,
                    const std::string& path,
                    const std::vector<std::string>& endings,
                    const char* allowed) {
  const auto has = [&](const std::string& ending) {
    return path.size() > ending.size() && path.ends_with(ending);
  };
  require(path.empty() || std::ranges::any_of(endings, has),
          fmt::format("{} {}: must end in {}", option, path, allowed));
}

}  // namespace

void add_train_flags(CLI::App& subcommand, TrainFlags& flags) {
  subcommand
      .add_option(
          "--model",
          flags.model,
          "mlp:IN-...-OUT[,relu|gelu|tanh][,norm[=layer|rms|batch]][,residual][,dropout=X] or "
          "conv:HxWxC-BLOCK-...-OUT[,relu|gelu|tanh][,norm=batch|group|none][,dropout=X] or "
          "gpt:layers=N,d=N,heads=N,context=N[,kv=N][,mlp=gelu|swiglu][,norm=layer|rms]"
          "[,pos=learned|rotary][,tied=no|yes][,dropout=X][,vocabulary=N]")
      ->capture_default_str();
  subcommand
      .add_option("--data",
                  flags.data,
                  "digits, csv:FILE (numbers, label last), idx:FOLDER, text or text:FILE[,bytes]")
      ->capture_default_str();
  subcommand.add_option("--validation",
                        flags.validation,
                        "Evaluate while training: data, as --data takes it, or the last share of "
                        "the training samples, as 0.1, which is then not trained on");
  subcommand
      .add_option("--lengths",
                  flags.lengths,
                  "Samples of a text: fixed (windows of the model's context) or bucket (lines; "
                  "micro-batches of similar length, each padded to its longest)")
      ->capture_default_str();
  add_pipeline_flags(subcommand, flags);
  add_batch_flags(subcommand, flags);
  add_setting_flags(subcommand);
  subcommand
      .add_option("--precision",
                  flags.precision,
                  "f32, bf16 or f16: of activations, their gradients and the layers' weights")
      ->capture_default_str();
  subcommand.add_option(
      "--dropout", flags.dropout, "Dropout after every linear layer except the last");
  add_start_flags(subcommand, flags.start);
  add_output_flags(subcommand, flags);
}

void check_watch(const WatchFlags& flags) {
  require_ending("--log", flags.log, {".jsonl", ".csv"}, ".jsonl (a JSON object per line) or .csv");
  require_ending("--metrics",
                 flags.metrics,
                 {".prom"},
                 ".prom, as the files that Prometheus' node exporter collects do");
  require_ending("--report", flags.report, {".html"}, ".html");
}

}  // namespace millrace::cli
