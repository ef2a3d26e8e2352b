// Where a step that has found its stride takes its tensors from, so that it asks the system for
// nothing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "millrace/core/tensor.hpp"

namespace millrace {

/// Recycles tensor memory so that a steady-state step allocates nothing: freed blocks go to a list
/// of their size (rounded up by at most an eighth).
/// Tensors made here may outlive the pool (a message under way, a prediction in the user's hands):
/// the last of them frees what the pool left behind.
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

  /// Uninitialised tensor; reuses a freed block of the same size class when there is one.
  [[nodiscard]] Tensor make(DType dtype, const Dims& dims) {
    const std::size_t bytes = size_of(dtype) * static_cast<std::size_t>(dims.elements());
    return {dtype,
            dims,
            store_->take(size_class(bytes)),
            &TensorPool::give_back,
            store_,
            Margins::Whole};
  }

  /// How many blocks were ever taken from the system; constant once a step is in its steady state.
  [[nodiscard]] std::size_t blocks_allocated() const {
    const std::lock_guard lock(store_->mutex);
    return store_->allocated;
  }

 private:
  static std::size_t size_class(std::size_t bytes) {
    std::size_t unit = kAlignment;
    while (unit * 16 < bytes) unit *= 2;
    return (std::max<std::size_t>(bytes, 1) + unit - 1) / unit * unit;
  }

  /// Lives until the pool and all its tensors are gone.
  struct Store {
    Store() = default;
    Store(const Store&) = delete;
    Store& operator=(const Store&) = delete;

    ~Store() {
      for (const auto& [bytes, blocks] : free)
        for (void* block : blocks) free_with_margins(block);
    }

    std::vector<void*>& list_of(std::size_t bytes) {
      for (auto& [size, blocks] : free)
        if (size == bytes) return blocks;
      return free.emplace_back(bytes, std::vector<void*>{}).second;
    }

    void* take(std::size_t bytes) {
      const std::lock_guard lock(mutex);
      auto& blocks = list_of(bytes);
      void* block = nullptr;
      if (blocks.empty()) {
        blocks.reserve(allocated + 1);  // so that give_back never allocates
        block = allocate_with_margins(bytes);
        ++allocated;
      } else {
        block = blocks.back();
        blocks.pop_back();
      }
      ++outstanding;
      return block;
    }

    std::mutex mutex;  // guards everything below
    std::vector<std::pair<std::size_t, std::vector<void*>>> free;
    std::size_t allocated = 0;
    std::size_t outstanding = 0;
    bool orphaned = false;
  };

  static void give_back(void* data, std::size_t bytes, void* owner) noexcept {
    auto* store = static_cast<Store*>(owner);
    bool last = false;
    {
      const std::lock_guard lock(store->mutex);
      store->list_of(size_class(bytes)).push_back(data);
      last = --store->outstanding == 0 && store->orphaned;
    }
    if (last) delete store;
  }

  Store* store_;  // with the tensors made here
};

}  // namespace millrace
