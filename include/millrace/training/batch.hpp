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

/// What Batch makes of n samples of P positions: the size of every unit, [micro_batch * slices +
/// slice]. Throws InvalidArgument unless there are at least 1 micro-batch and 1 slice.
[[nodiscard]] std::vector<UnitSize> unit_sizes(std::int64_t n,
                                               std::int64_t positions,
                                               int micro_batches,
                                               int slices);

/// One mini-batch, each micro-batch in aligned memory of its own. Samples keep their order, so the
/// mini-batch is the same for every number of micro-batches; documents come longest first.
/// Thread-safety: `fill` externally synchronised; the StepData calls from any thread.
class Batch : public StepData {
 public:
  Batch() = default;
  /// Takes all samples of `data`, in order.
  Batch(const Dataset& data, int micro_batches, int slices = 1);

  /// Takes the given rows of `data`. Of documents every micro-batch has as many positions as its
  /// own longest; where a document has ended there are token 0, target 0 and weight 0, in a second
  /// tensor of targets (f32, 1 for each target that there is). Of q slices each gets the next P / q
  /// of the P positions of every sequence, and one more in the first P mod q; other tensors go to
  /// every slice. Memory is reused when the sizes allow it. Throws InvalidArgument when a row does
  /// not exist, when a tensor has another number of samples, when there are more slices than
  /// positions, when targets are to be cut that are no sequence, and when documents are to be cut.
  void fill(const Dataset& data,
            std::span<const std::int32_t> rows,
            int micro_batches,
            int slices = 1);

  [[nodiscard]] std::int64_t samples() const { return samples_; }
  [[nodiscard]] int micro_batches() const { return static_cast<int>(parts_.size()); }
  [[nodiscard]] int slices() const { return static_cast<int>(positions_.size()); }
  [[nodiscard]] std::int64_t samples(MicroBatch micro_batch) const {
    return parts_[micro_batch.index()].count;
  }
  /// Of every sample of a micro-batch, those of all slices, padding included.
  [[nodiscard]] std::int64_t positions(MicroBatch micro_batch) const {
    return parts_[micro_batch.index()].positions;
  }
  /// Of all samples.
  [[nodiscard]] std::int64_t positions() const;

  /// Borrowed tensors, valid until the next fill; no targets where the data set has none. Throw
  /// InvalidArgument for a unit that the batch does not have.
  TensorList inputs(const Unit& unit) override;
  TensorList targets(const Unit& unit) override;
  [[nodiscard]] std::int64_t first_sample(const Unit& unit) const override;
  [[nodiscard]] std::int64_t first_position(const Unit& unit) const override;
  [[nodiscard]] bool is_empty(const Unit& unit) const override;

  std::int64_t epoch = 0;   ///< set by the loader
  std::int64_t number = 0;  ///< of the mini-batch inside its epoch, set by the loader

 private:
  struct Part {
    std::int64_t first = 0;
    std::int64_t count = 0;
    std::int64_t positions = 1;
    // By slice; at least `count` rows. Of documents flat, with room for the longest that come.
    std::vector<std::vector<Tensor>> inputs, targets;
  };

  struct Range {
    std::int64_t first = 0;
    std::int64_t count = 0;
  };

  void cut_positions(const Dataset& data, int slices);
  void fill_part(Part& part, const Dataset& data, std::span<const std::int32_t> rows) const;
  void gather_documents(Part& part, const Dataset& data, std::span<const std::int32_t> rows) const;
  void gather_windows(std::vector<std::vector<Tensor>>& to,
                      const std::vector<SampleTensor>& from,
                      const Dataset::Windows& windows,
                      std::span<const std::int32_t> rows) const;
  void gather(std::vector<std::vector<Tensor>>& to,
              const std::vector<SampleTensor>& from,
              const Dataset::Windows& windows,
              std::span<const std::int32_t> rows) const;
  Part& part(const Unit& unit);
  [[nodiscard]] TensorList borrow(std::vector<Tensor>& tensors, const Part& part) const;

  std::vector<Part> parts_;
  std::vector<Range> positions_;  // by slice
  std::int64_t samples_ = 0;
  bool of_documents_ = false;
};

}  // namespace millrace
