#include "cli/train/batch.hpp"

#include <algorithm>

#include "cli/numbers.hpp"
#include "cli/train/refusals.hpp"
#include "cli/vocabulary.hpp"
#include "millrace/core/error.hpp"
#include "millrace/training/effective_batch.hpp"

namespace millrace::cli {

namespace {

/// "256" or "256:sqrt".
struct Scaling {
  std::int64_t base = 0;
  BatchScaling law = BatchScaling::Linear;
};

constexpr const char* kScaleFlag = "--scale-lr-with-batch";
constexpr std::int64_t kMostPasses = 1'000'000;

Scaling scaling_of(const std::string& text) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  Scaling scaling;
  scaling.base = whole_number(kScaleFlag, text.substr(0, colon), 1, 1'000'000'000);
  if (colon < text.size())
    scaling.law = about(kScaleFlag, text, [&] { return batch_scaling(text.substr(colon + 1)); });
  return scaling;
}

EffectiveBatch batch_of(const TrainerOptions& options, std::int64_t copies, std::int64_t samples) {
  return {.samples = samples,
          .copies = copies,
          .passes = options.accumulate,
          .micro_batches = *options.micro_batches};
}

/// The option that says how many samples an update sees, as typed.
std::string typed(const BatchFlags& flags) {
  if (flags.effective_batch) return "--effective-batch " + std::to_string(*flags.effective_batch);
  if (flags.batch_size) return "--batch-size " + std::to_string(*flags.batch_size);
  return "--micro-batch-size " + std::to_string(flags.micro_batch_size.value_or(0));
}

/// " in each of 2 passes (--accumulate)", where there are several.
ParameterText in_each_of(std::int64_t count, const std::string& things, const char* parameter) {
  if (count == 1) return "";
  return " in each of " + (std::to_string(count) + " " + things + " (") + named(parameter) + ")";
}

/// Of a whole mini-batch, at least one for every micro-batch.
void require_samples(const BatchFlags& flags,
                     const ParameterText& micro_batches,
                     std::int64_t copies,
                     const TrainerOptions& options) {
  const std::string samples = std::to_string(options.batch_size);
  const std::string has = ": a mini-batch has " + samples + " samples (" +
                          (flags.effective_batch ? "--effective-batch" : "--batch-size") +
                          "), so at most ";
  const std::int64_t passes = options.accumulate;
  require(copies <= options.batch_size,
          named("data_parallel") + " " + std::to_string(copies) + has + samples);
  const std::int64_t of_copy = options.batch_size / copies;
  const ParameterText of_copies = in_each_of(copies, "copies", "data_parallel");
  require(passes <= of_copy,
          named("accumulate") + " " + std::to_string(passes) + of_copies + has +
              std::to_string(of_copy));
  require(*options.micro_batches <= of_copy / passes,
          micro_batches + " " + std::to_string(*options.micro_batches) +
              in_each_of(passes, "passes", "accumulate") + of_copies + has +
              std::to_string(of_copy / passes));
}

/// Copies add up as one process does unless another order is asked for.
AccumulateOrder order_of(const BatchFlags& flags, std::int64_t copies) {
  if (flags.accumulate_order.empty())
    return copies > 1 ? AccumulateOrder::Tree : AccumulateOrder::Ascending;
  return about(flag("accumulate_order"), flags.accumulate_order, [&] {
    return accumulate_order(flags.accumulate_order);
  });
}

}  // namespace

void add_batch_flags(CLI::App& verb, BatchFlags& flags) {
  verb.add_option("--batch-size", flags.batch_size, "Samples of a mini-batch, one update (128)");
  verb.add_option("--effective-batch",
                  flags.effective_batch,
                  "The same number; exactly as many micro-batches of --micro-batch-size");
  verb.add_option("--micro-batch-size",
                  flags.micro_batch_size,
                  "Samples of a micro-batch, exactly (mini-batches are shared out)");
  verb.add_option(cli::flag("accumulate"),
                  flags.accumulate,
                  "Passes of the pipeline per update, each over -m micro-batches")
      ->capture_default_str();
  verb.add_option(cli::flag("accumulate_order"),
                  flags.accumulate_order,
                  "ascending (for one copy of the pipeline) or tree (for several): how the "
                  "micro-batches' gradients are added; tree: the same bits from every schedule and "
                  "number of copies");
  verb.add_option(kScaleFlag,
                  flags.scale_lr,
                  "BASE[:linear|:sqrt]: --lr is right for mini-batches of BASE samples");
}

void check_batch(const BatchFlags& flags) {
  require(!flags.batch_size || !flags.effective_batch,
          "--batch-size and --effective-batch: give one of them");
  if (flags.batch_size) require_count("--batch-size", *flags.batch_size);
  if (flags.effective_batch) require_count("--effective-batch", *flags.effective_batch);
  if (flags.micro_batch_size) require_count("--micro-batch-size", *flags.micro_batch_size);
  require_count(named("accumulate"), flags.accumulate, kMostPasses);
  static_cast<void>(order_of(flags, 1));
  if (!flags.scale_lr.empty()) scaling_of(flags.scale_lr);
}

void set_batch(const BatchFlags& flags,
               const ParameterText& micro_batches,
               std::int64_t copies,
               TrainerOptions& options) {
  constexpr std::int64_t kUsual = 128;
  options.accumulate = static_cast<int>(flags.accumulate);
  options.accumulate_order = order_of(flags, copies);
  const auto given = flags.effective_batch ? flags.effective_batch : flags.batch_size;
  EffectiveBatch batch = batch_of(options, copies, given.value_or(kUsual));
  if (flags.micro_batch_size) {
    const std::int64_t size = *flags.micro_batch_size;
    try {
      if (!given) batch.samples = samples_of(batch, size);
      require_exact(batch, size);
    } catch (const InvalidArgument& error) {
      throw InvalidParameter(typed(flags) + ": " + parameter_text(error));
    }
  }
  options.batch_size = batch.samples;
  require_samples(flags, micro_batches, copies, options);
}

void scale_rate(const BatchFlags& flags, TrainerOptions& options) {
  if (flags.scale_lr.empty()) return;
  const Scaling scaling = scaling_of(flags.scale_lr);
  double& rate = options.learning_rate.base;
  rate = scaled_with_batch(rate, options.batch_size, scaling.base, scaling.law);
}

std::string batch_line(const BatchFlags& flags,
                       const TrainerOptions& options,
                       std::int64_t copies,
                       std::int64_t samples) {
  const std::string line = to_string(batch_of(options, copies, samples));
  if (flags.scale_lr.empty()) return line;
  const Scaling scaling = scaling_of(flags.scale_lr);
  return line + "; learning rate " + plain(options.learning_rate.base) + ", scaled from " +
         std::to_string(scaling.base) + " samples (" + std::string(name_of(scaling.law)) + ")";
}

}  // namespace millrace::cli
