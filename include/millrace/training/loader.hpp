// The loader: shuffled mini-batches in a fixed order, gathered ahead of time by worker threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "millrace/training/batch_source.hpp"
#include "millrace/training/dataset.hpp"

namespace millrace {

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
