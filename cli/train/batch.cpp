// Samples of an update and of its micro-batches.
#include <fmt/format.h>

#include "cli/numbers.hpp"
#include "cli/train/options.hpp"
#include "cli/train/refusals.hpp"
#include "cli/vocabulary.hpp"
#include "millrace/core/error.hpp"
#include "millrace/training/learning_rate.hpp"

namespace millrace::cli {

namespace {

/// "256" or "256:sqrt".
struct Scaling {
  std::int64_t base = 0;
  BatchScaling law = BatchScaling::Linear;
};

constexpr const char* kScaleFlag = "--scale-lr-with-batch";

Scaling scaling_of(const std::string& text) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  Scaling scaling;
  scaling.base = whole_number(kScaleFlag, text.substr(0, colon), 1, 1'000'000'000);
  if (colon < text.size())
    scaling.law = about(kScaleFlag, text, [&] { return batch_scaling(text.substr(colon + 1)); });
  return scaling;
}

EffectiveBatch batch_of(const TrainJob& job, std::int64_t samples) {
  return {.samples = samples,
          .copies = job.flags.data_parallel,
          .passes = job.options.step.accumulate,
          .micro_batches = job.program.shape.micro_batches};
}

/// The given option that sets the samples of an update.
std::string given_option(const TrainJob& job) {
  if (job.flags.effective_batch)
    return fmt::format("--effective-batch {}", *job.flags.effective_batch);
  if (job.given.contains("batch_size"))
    return fmt::format("--batch-size {}", job.options.fit.batch_size);
  return fmt::format("--micro-batch-size {}", *job.flags.micro_batch_size);
}

/// " in each of 2 passes (--accumulate)"; empty for one.
ParameterText in_each_of(std::int64_t count, const char* things, const char* parameter) {
  if (count == 1) return "";
  return fmt::format(" in each of {} {} (", count, things) + named(parameter) + ")";
}

/// A whole mini-batch has a sample for every micro-batch.
void require_samples(const ParameterText& micro_batches, const TrainJob& job) {
  const std::int64_t samples = job.options.fit.batch_size, passes = job.options.step.accumulate;
  const std::int64_t copies = job.flags.data_parallel;
  const auto require_at_most = [&](const ParameterText& option,
                                   std::int64_t value,
                                   const ParameterText& shared,
                                   std::int64_t most) {
    require(value <= most,
            option + fmt::format(" {}", value) + shared +
                fmt::format(": a mini-batch has {} samples ({}), so at most {}",
                            samples,
                            job.flags.effective_batch ? "--effective-batch" : "--batch-size",
                            most));
  };
  const ParameterText of_copies = in_each_of(copies, "copies", "data_parallel");
  require_at_most(named("data_parallel"), copies, "", samples);
  require_at_most(named("accumulate"), passes, of_copies, samples / copies);
  require_at_most(micro_batches,
                  job.program.shape.micro_batches,
                  in_each_of(passes, "passes", "accumulate") + of_copies,
                  samples / copies / passes);
}

}  // namespace

void check_batch(const TrainFlags& flags) {
  if (flags.effective_batch) require_count("--effective-batch", *flags.effective_batch);
  if (flags.micro_batch_size) require_count("--micro-batch-size", *flags.micro_batch_size);
  if (!flags.scale_lr.empty()) scaling_of(flags.scale_lr);
}

void set_batch(const ParameterText& micro_batches, TrainJob& job) {
  const TrainFlags& flags = job.flags;
  EffectiveBatch batch = batch_of(job, flags.effective_batch.value_or(job.options.fit.batch_size));
  if (flags.micro_batch_size) {
    const std::int64_t size = *flags.micro_batch_size;
    try {
      if (!flags.effective_batch && !job.given.contains("batch_size"))
        batch.samples = samples_of(batch, size);
      require_exact(batch, size);
    } catch (const InvalidArgument& error) {
      throw InvalidParameter(given_option(job) + ": " + parameter_text(error));
    }
  }
  job.options.fit.batch_size = batch.samples;
  require_samples(micro_batches, job);
}

void scale_rate(const TrainFlags& flags, TrainerOptions& options) {
  if (flags.scale_lr.empty()) return;
  const Scaling scaling = scaling_of(flags.scale_lr);
  double& rate = options.step.learning_rate.base;
  rate = scaled_with_batch(rate, options.fit.batch_size, scaling.base, scaling.law);
}

std::string batch_line(const TrainJob& job) {
  const std::string line = to_string(batch_of(job, job.full_batch()));
  if (job.flags.scale_lr.empty()) return line;
  const Scaling scaling = scaling_of(job.flags.scale_lr);
  return fmt::format("{}; learning rate {}, scaled from {} samples ({})",
                     line,
                     plain(job.options.step.learning_rate.base),
                     scaling.base,
                     name_of(scaling.law));
}

}  // namespace millrace::cli
