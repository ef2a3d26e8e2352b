// What the processes of a step find out from each other in one collective: losses, peaks, and
// whether they were given the same mini-batch.
#include <algorithm>
#include <span>
#include <vector>

#include "training/agreement.hpp"
#include "training/batch_digest.hpp"
#include "training/trainer_state.hpp"

namespace millrace {
namespace {

using Peaks = std::vector<std::size_t>;

/// The peaks of a pass, of those kinds that were counted.
std::vector<Peaks*> peaks_of(StepResult& result) {
  std::vector<Peaks*> kinds = {&result.peak_stash_bytes};
  if (!result.peak_sum_bytes.empty()) kinds.push_back(&result.peak_sum_bytes);
  return kinds;
}

std::vector<LossSum>& losses_of(StepResult& result, std::size_t sink) {
  return sink < result.other_losses.size() ? result.other_losses[sink] : result.unit_losses;
}

/// Behind one another, each kind's of `copies` copies, of which this is one.
void put_peaks(const std::vector<Peaks*>& kinds,
               std::span<double> values,
               std::size_t copy,
               std::size_t copies) {
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    const Peaks& peaks = *kinds[kind];
    for (std::size_t rank = 0; rank < peaks.size(); ++rank)
      values[(kind * copies + copy) * peaks.size() + rank] = static_cast<double>(peaks[rank]);
  }
}

/// The largest of all copies.
void take_peaks(const std::vector<Peaks*>& kinds,
                std::span<const double> values,
                std::size_t copies) {
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    Peaks& peaks = *kinds[kind];
    const std::size_t ranks = peaks.size();
    const auto of_kind = values.subspan(kind * copies * ranks, copies * ranks);
    peaks.assign(ranks, 0);
    for (std::size_t i = 0; i < of_kind.size(); ++i)
      peaks[i % ranks] = std::max(peaks[i % ranks], static_cast<std::size_t>(of_kind[i]));
  }
}

}  // namespace

StepData& Trainer::State::watched(StepData& data, int micro_batches) {
  if (group.size() == 1) return data;
  batch_digest.begin(data, micro_batches, shape.slices);
  return batch_digest;
}

/// Makes loss, samples, peaks, the declared weight and whether anybody looks at whole gradients
/// known to every member, in one collective. The losses of several copies of the pipeline stand one
/// behind the other; of more than `copies`, the others ran the same and say nothing. Throws
/// Mismatch on every member when they were given different mini-batches, where that is compared.
void Trainer::State::agree(StepResult& result,
                           std::vector<double>& declared,
                           int copies,
                           bool compares_batch) {
  if (group.size() == 1) return;
  if (compares_batch) batch_digest.take_rest(group);
  const auto ranks = static_cast<std::size_t>(shape.ranks);
  const auto of_all = static_cast<std::size_t>(copies);
  const auto copy = static_cast<std::size_t>(parts.seat.copy());
  const std::size_t units = result.unit_losses.size();
  // Of each sink its declared weight, how many say so, and its losses.
  const std::size_t of_sink = 2 + 4 * of_all * units;
  constexpr std::size_t kBeforeSinks = 2;
  const std::size_t peaks = kBeforeSinks + sinks.size() * of_sink;
  const auto kinds = peaks_of(result);
  const std::size_t digests = peaks + kinds.size() * of_all * ranks;
  std::vector<double> values(digests + BatchDigest::kValues, 0.0);
  const auto of_batch = std::span(values).subspan(digests).first<BatchDigest::kValues>();
  if (compares_batch) batch_digest.put(of_batch);
  if (copy < of_all) {
    values[0] = static_cast<double>(result.samples);
    values[1] = before_update != nullptr && *before_update ? 1.0 : 0.0;
    for (std::size_t sink = 0; sink < sinks.size(); ++sink) {
      auto value = values.begin() + static_cast<std::ptrdiff_t>(kBeforeSinks + sink * of_sink);
      // A sink with copies lives on several ranks, and each of them declares the same weight.
      *value++ = sinks[sink] != nullptr ? declared[sink] : 0.0;
      *value++ = sinks[sink] != nullptr ? 1.0 : 0.0;
      value += static_cast<std::ptrdiff_t>(4 * copy * units);
      for (const LossSum& unit : losses_of(result, sink)) {
        *value++ = unit.sum;
        *value++ = unit.weight;
        *value++ = static_cast<double>(unit.correct);
        *value++ = static_cast<double>(unit.evaluated);
      }
    }
    put_peaks(kinds, std::span(values).subspan(peaks), copy, of_all);
  }
  group.sum(values, Label::Loss);
  if (!BatchDigest::is_same(of_batch)) refuse_batches(group, batch_digest);

  result.samples = static_cast<std::int64_t>(values[0]);
  gradients_wanted = values[1] != 0;
  for (std::size_t sink = 0; sink < sinks.size(); ++sink) {
    auto value = values.cbegin() + static_cast<std::ptrdiff_t>(kBeforeSinks + sink * of_sink);
    declared[sink] = value[0] / value[1];
    value += 2;
    std::vector<LossSum>& losses = losses_of(result, sink);
    losses.resize(of_all * units);
    for (LossSum& unit : losses) {
      unit = {value[0],
              value[1],
              static_cast<std::int64_t>(value[2]),
              static_cast<std::int64_t>(value[3])};
      value += 4;
    }
  }
  result.loss = LossSum();
  for (const LossSum& unit : result.unit_losses) result.loss += unit;
  take_peaks(kinds, std::span<const double>(values).subspan(peaks), of_all);
}

}  // namespace millrace
