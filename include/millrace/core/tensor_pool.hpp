// Where a step that has found its stride takes its tensors from, so that it asks the system for
// nothing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <mutex>
#include <vector>

#include "millrace/core/tensor.hpp"

namespace millrace {

/// Recycles tensor memory so that a steady-state step allocates nothing: a tensor gets the freed
/// block that fits it best, of at most twice its size, so that shapes that change from step to step
/// share blocks; else a new one (its size rounded up by at most an eighth).
/// Tensors made here may outlive the pool (a message under way, a prediction in the user's hands):
/// the last of them frees the pool's memory.
/// Thread-safety: internally synchronised, any thread.
class TensorPool {
 public:
  TensorPool() : store_(new Store) {}
  TensorPool(const TensorPool&) = delete;
  TensorPool& operator=(const TensorPool&) = delete;

  ~TensorPool() {
    bool last = false;
    {
      const std::lock_guard lock(store_->mutex);
      store_->orphaned = true;
      last = store_->outstanding == 0;
    }
    if (last) delete store_;
  }

  /// Uninitialised tensor; reuses a freed block when one fits. Throws std::bad_alloc, and what
  /// bytes_of throws.
  [[nodiscard]] Tensor make(DType dtype, const Dims& dims) {
    return {dtype,
            dims,
            store_->take(size_class(bytes_of(dtype, dims))),
            &TensorPool::give_back,
            store_,
            Margins::Whole};
  }

  /// How many blocks were ever taken from the system; constant once a step is in its steady state.
  [[nodiscard]] std::size_t blocks_allocated() const {
    const std::lock_guard lock(store_->mutex);
    return store_->blocks.size();
  }

 private:
  static std::size_t size_class(std::size_t bytes) {
    std::size_t unit = kAlignment;
    while (unit * 16 < bytes) unit *= 2;
    return (std::max<std::size_t>(bytes, 1) + unit - 1) / unit * unit;
  }

  struct Block {
    void* data;
    std::size_t bytes;
  };

  /// Lives until the pool and all its tensors are gone.
  struct Store {
    Store() = default;
    Store(const Store&) = delete;
    Store& operator=(const Store&) = delete;

    ~Store() {
      for (const Block& block : free) free_with_margins(block.data);
    }

    void* take(std::size_t bytes) {
      const std::lock_guard lock(mutex);
      void* data = take_free(bytes);
      if (data == nullptr) data = new_block(bytes);
      ++outstanding;
      return data;
    }

    void* take_free(std::size_t bytes) {
      const auto fits = std::ranges::lower_bound(free, bytes, {}, &Block::bytes);
      if (fits == free.end() || fits->bytes > 2 * bytes) return nullptr;
      // Of those of that size the one freed last: the caches still hold it.
      const auto taken = std::prev(std::ranges::upper_bound(free, fits->bytes, {}, &Block::bytes));
      void* data = taken->data;
      free.erase(taken);
      return data;
    }

    void* new_block(std::size_t bytes) {
      void* data = allocate_with_margins(bytes);
      blocks.insert(std::ranges::upper_bound(blocks, data, {}, &Block::data), {data, bytes});
      free.reserve(blocks.capacity());  // so that put_back never allocates
      return data;
    }

    void put_back(void* data) noexcept {
      const Block block = *std::ranges::lower_bound(blocks, data, {}, &Block::data);
      free.insert(std::ranges::upper_bound(free, block.bytes, {}, &Block::bytes), block);
    }

    std::mutex mutex;           // guards everything below
    std::vector<Block> blocks;  // all, by address
    std::vector<Block> free;    // by size, of one size the latest last
    std::size_t outstanding = 0;
    bool orphaned = false;
  };

  static void give_back(void* data, std::size_t, void* owner) noexcept {
    auto* store = static_cast<Store*>(owner);
    bool last = false;
    {
      const std::lock_guard lock(store->mutex);
      store->put_back(data);
      last = --store->outstanding == 0 && store->orphaned;
    }
    if (last) delete store;
  }

  Store* store_;  // with the tensors made here
};

}  // namespace millrace
