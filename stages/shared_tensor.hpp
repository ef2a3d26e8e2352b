// A tensor with several readers: each gets a tensor of its own over the same memory, which goes
// back when the last of them is gone.
#pragma once

#include <atomic>
#include <new>
#include <utility>

#include "millrace/stages/stage.hpp"

namespace millrace::detail {

/// Holds one tensor until its readers have taken it. One reader takes the tensor itself; of several
/// none may write into it. The tensors that were taken may be dropped by any thread.
/// Thread-safety: externally synchronised.
class SharedTensor {
 public:
  SharedTensor() = default;
  SharedTensor(const SharedTensor&) = delete;
  SharedTensor& operator=(const SharedTensor&) = delete;
  SharedTensor(SharedTensor&& other) noexcept
      : tensor_(std::move(other.tensor_)),
        memory_(std::exchange(other.memory_, nullptr)),
        readers_(std::exchange(other.readers_, 0)) {}
  SharedTensor& operator=(SharedTensor&&) = delete;
  ~SharedTensor() { drop(); }

  /// For `readers` calls of `take`. Memory for the count comes from the context.
  void set(const PassContext& context, Tensor tensor, int readers) {
    drop();
    tensor_ = std::move(tensor);
    readers_ = readers;
    if (readers < 2 || !tensor_) return;
    Tensor block = context.make(DType::U8, {static_cast<std::int64_t>(sizeof(Memory))});
    void* at = block.data();
    memory_ = ::new (at) Memory{{}, std::move(tensor_), std::move(block)};
    memory_->users.store(1, std::memory_order_relaxed);
  }

  [[nodiscard]] Tensor take() {
    --readers_;
    if (memory_ == nullptr) return std::move(tensor_);
    Memory* memory = memory_;
    if (readers_ > 0)
      memory->users.fetch_add(1, std::memory_order_relaxed);
    else
      memory_ = nullptr;  // the last reader takes over what was held here
    Tensor& whole = memory->whole;
    return {whole.dtype(), whole.dims(), whole.data(), &release, memory, whole.margins()};
  }

  /// Not taken; empty when nothing is held.
  [[nodiscard]] const Tensor& look() const { return memory_ != nullptr ? memory_->whole : tensor_; }

  void drop() noexcept {
    if (memory_ != nullptr) release(nullptr, 0, std::exchange(memory_, nullptr));
    tensor_ = Tensor();
    readers_ = 0;
  }

 private:
  struct Memory {
    std::atomic<int> users;
    Tensor whole;
    Tensor block;  // where this lies
  };

  static void release(void*, std::size_t, void* owner) noexcept {
    auto* memory = static_cast<Memory*>(owner);
    if (memory->users.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    const Tensor block = std::move(memory->block);  // outlives the object that lies in it
    memory->~Memory();
  }

  Tensor tensor_;
  Memory* memory_ = nullptr;
  int readers_ = 0;
};

}  // namespace millrace::detail
