// Where a training's mini-batches come from: the built-in Loader, or a class of yours.
#pragma once

#include <cstdint>

#include "millrace/training/batch.hpp"

namespace millrace {

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

}  // namespace millrace
