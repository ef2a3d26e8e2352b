// How many bytes a graph keeps: found by watching what the operations of one pass allocate, and
// asking later what of it is still alive.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/core/StorageImpl.h>
#include <cstddef>
#include <map>
#include <vector>

namespace millrace::on_torch {

/// The memory of all results of operations that ran while it was watched (Watching). Knows of it
/// without keeping it. Thread-safety: externally synchronised.
class HeldMemory {
 public:
  void note(const at::Tensor& tensor);

  /// Bytes that somebody still holds, but for those of `others`: memory that was there before, and
  /// `given`: memory that is held by one tensor, which somebody else was given.
  [[nodiscard]] std::size_t bytes(const std::vector<const void*>& others,
                                  const std::vector<const void*>& given) const;

 private:
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;

  std::map<const c10::StorageImpl*, Weak> seen_;
};

/// Notes what the calling thread's operations make, as long as it lives; null: nothing. Cost: about
/// a microsecond an operation. Thread-safety: thread-affine: only the thread that created it.
class Watching {
 public:
  explicit Watching(HeldMemory* memory);
  Watching(const Watching&) = delete;
  Watching& operator=(const Watching&) = delete;
  ~Watching();

 private:
  at::CallbackHandle handle_ = 0;
  bool watches_;
};

}  // namespace millrace::on_torch
