// A mini-batch in memory, cut into micro-batches: what a step reads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "millrace/scheduler/run/executor.hpp"
#include "millrace/training/dataset.hpp"

namespace millrace {

/// Samples of each of the m micro-batches of a mini-batch of n: n / m, and one more in the first
/// n mod m. With n < m the last ones are empty (0 rows), which every built-in layer accepts: the
/// schedule stays the same for every mini-batch. Throws InvalidArgument unless m >= 1 and n >= 0.
[[nodiscard]] std::vector<std::int64_t> micro_batch_sizes(std::int64_t n, int micro_batches);

/// One mini-batch, each micro-batch in aligned memory of its own. Samples keep their order, so the
/// mini-batch is the same for every number of micro-batches.
/// Thread-safety: `fill` externally synchronised; the StepData calls from any thread.
class Batch : public StepData {
 public:
  Batch() = default;
  /// Takes all samples of `data`, in order.
  Batch(const Dataset& data, int micro_batches);

  /// Takes the given rows of `data`. Memory is reused when the sizes allow it. Throws
  /// InvalidArgument when a row does not exist, or when there are targets for another number of
  /// samples.
  void fill(const Dataset& data, std::span<const std::int32_t> rows, int micro_batches);

  [[nodiscard]] std::int64_t samples() const { return samples_; }
  [[nodiscard]] int micro_batches() const { return static_cast<int>(parts_.size()); }
  [[nodiscard]] std::int64_t samples(MicroBatch micro_batch) const {
    return parts_[micro_batch.index()].count;
  }

  /// Borrowed tensors, valid until the next fill; no targets where the data set has none. Throw
  /// InvalidArgument for a slice above 0: samples of a batch have no sequence to cut.
  TensorList inputs(const Unit& unit) override;
  TensorList targets(const Unit& unit) override;
  [[nodiscard]] std::int64_t first_sample(const Unit& unit) const override;

  std::int64_t epoch = 0;   ///< set by the loader
  std::int64_t number = 0;  ///< of the mini-batch inside its epoch, set by the loader

 private:
  struct Part {
    std::int64_t first = 0;
    std::int64_t count = 0;
    Tensor features, targets;  // at least `count` rows
  };

  Part& part(const Unit& unit);

  std::vector<Part> parts_;
  std::int64_t samples_ = 0;
};

}  // namespace millrace
