#include "millrace/core/error.hpp"
#include "millrace/training/learning_rate.hpp"

namespace millrace {
namespace {

constexpr std::int64_t kMost = 1'000'000'000;

/// a * b, at most kMost.
std::int64_t product(std::int64_t a, std::int64_t b) {
  require(a >= 1 && b >= 1, [&] {
    return "an effective batch is a product of numbers of at least 1, got " + std::to_string(a) +
           " and " + std::to_string(b);
  });
  require(a <= kMost / b, [&] {
    return "an effective batch of " + std::to_string(a) + " times " + std::to_string(b) +
           " samples is more than " + std::to_string(kMost);
  });
  return a * b;
}

std::int64_t parts_of(const EffectiveBatch& batch) {
  return product(product(batch.copies, batch.passes), batch.micro_batches);
}

std::string counted(std::int64_t count, const std::string& one, const std::string& many) {
  return std::to_string(count) + " " + (count == 1 ? one : many);
}

/// "2 copies x 4 passes x 8 micro-batches".
std::string factors_of(const EffectiveBatch& batch) {
  std::string text;
  if (batch.copies > 1) text += counted(batch.copies, "copy", "copies") + " x ";
  if (batch.passes > 1) text += counted(batch.passes, "pass", "passes") + " x ";
  return text + counted(batch.micro_batches, "micro-batch", "micro-batches");
}

}  // namespace

std::string to_string(const EffectiveBatch& batch) {
  require(batch.samples >= 1, [&] {
    return "an effective batch has at least 1 sample, got " + std::to_string(batch.samples);
  });
  const std::int64_t parts = parts_of(batch);
  const std::int64_t size = batch.samples / parts;
  const std::int64_t larger = batch.samples % parts;
  std::string text =
      counted(batch.samples, "sample", "samples") + " per update: " + factors_of(batch);
  if (larger == 0) return text + " of " + std::to_string(size);
  return text + ", " + std::to_string(larger) + " of " + std::to_string(size + 1) + " and " +
         std::to_string(parts - larger) + " of " + std::to_string(size);
}

std::int64_t samples_of(const EffectiveBatch& batch, std::int64_t micro_batch_size) {
  return product(parts_of(batch), micro_batch_size);
}

void require_exact(const EffectiveBatch& batch, std::int64_t micro_batch_size) {
  const std::int64_t fits = samples_of(batch, micro_batch_size);
  if (batch.samples == fits) return;
  ParameterText sentence = counted(batch.samples, "sample", "samples") + " per update are not " +
                           factors_of(batch) + " of " + std::to_string(micro_batch_size) +
                           ", which are " + std::to_string(fits);
  const std::int64_t of_one = fits / batch.micro_batches;
  const std::int64_t below = batch.samples / of_one;
  const auto with = [&](std::int64_t micro_batches) {
    return std::to_string(micro_batches * of_one) + " with " + named("micro_batches") + " " +
           std::to_string(micro_batches);
  };
  if (batch.samples % of_one == 0)
    sentence += "; they fit with " + named("micro_batches") + " " + std::to_string(below);
  else if (below == 0)
    sentence += "; the nearest that fits is " + with(1);
  else
    sentence += "; the nearest that fit are " + with(below) + " and " + with(below + 1);
  throw InvalidParameter(sentence);
}

}  // namespace millrace
