// Mini-batches: their micro-batches, their sources, and the loader, which shuffles in a fixed order
// and prefetches with worker threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
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

/// A place in the data: number `batch` of epoch `epoch`, both from 0.
/// Thread-safety: immutable, share freely.
struct DataPosition {
  std::int64_t epoch = 0;
  std::int64_t batch = 0;

  friend auto operator<=>(const DataPosition&, const DataPosition&) = default;
};

/// Mini-batches in an order that positions name: from one position on, the same ones come every
/// time. Derive to feed Trainer::fit with data of your own.
/// Thread-safety: externally synchronised.
class BatchSource {
 public:
  BatchSource() = default;
  BatchSource(const BatchSource&) = delete;
  BatchSource& operator=(const BatchSource&) = delete;
  virtual ~BatchSource() = default;

  /// The mini-batch at position(), valid until the following call; the position moves on, over the
  /// end of an epoch to {epoch + 1, 0}.
  virtual Batch& next() = 0;

  /// Of the mini-batch that next() will give.
  [[nodiscard]] virtual DataPosition position() const = 0;

  /// Goes there. Throws InvalidArgument when there is no such place.
  virtual void seek(const DataPosition& position) = 0;

  /// Mini-batches of every epoch; 0 when that is not known beforehand.
  [[nodiscard]] virtual std::int64_t batches_per_epoch() const { return 0; }
};

/// What becomes of the last, incomplete mini-batch of an epoch.
enum class LastBatch : std::uint8_t {
  Update,  ///< it is a step like any other, weighted by its own number of samples
  Drop,    ///< it is left out
};

/// "update", "drop".
[[nodiscard]] std::string_view name_of(LastBatch policy);

/// The policy called `name`. Throws InvalidArgument that lists the known names.
[[nodiscard]] LastBatch last_batch(std::string_view name);

struct LoaderOptions {
  std::int64_t batch_size = 128;
  int micro_batches = 8;
  int slices = 1;  ///< of every sequence, see Batch::fill
  std::uint64_t seed = 0;
  LastBatch last_batch = LastBatch::Update;
  bool shuffle = true;  ///< false: the order of the data set, every epoch
  int workers = 1;      ///< threads that gather; at least 1
  int ahead = 2;        ///< finished mini-batches that wait at most; at least 1
};

/// An endless sequence of mini-batches: epoch after epoch, each a new permutation that is a pure
/// function of (seed, epoch). Which batch comes at which place does not depend on the number of
/// workers. The data set must outlive the loader.
/// Thread-safety: externally synchronised (`next` from one thread at a time).
class Loader final : public BatchSource {
 public:
  /// Starts the workers. Throws InvalidArgument when an option is out of its range, when the data
  /// set is empty, or when Drop would leave no mini-batch at all.
  Loader(const Dataset& data, const LoaderOptions& options);
  Loader(const Dataset&& data, const LoaderOptions& options) = delete;
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;
  /// Stops and joins the workers.
  ~Loader() override;

  /// Waits for a worker when none is ready; rethrows what a worker threw.
  Batch& next() override;
  [[nodiscard]] DataPosition position() const override;
  /// Starts the workers again. Throws InvalidArgument unless 0 <= batch < batches_per_epoch() and
  /// epoch >= 0.
  void seek(const DataPosition& position) override;
  [[nodiscard]] std::int64_t batches_per_epoch() const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace millrace
