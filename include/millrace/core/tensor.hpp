// The tensor that flows through the pipeline: 64-byte aligned, row-major, movable and not copyable,
// owning its memory, borrowing foreign memory with a deleter, or drawn from a pool. No arithmetic
// lives here; stages have that.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "millrace/core/error.hpp"

namespace millrace {

enum class DType : std::uint8_t { F32, F16, BF16, F64, I32, I64, U8 };

[[nodiscard]] constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::F64:
    case DType::I64:
      return 8;
    case DType::F32:
    case DType::I32:
      return 4;
    case DType::F16:
    case DType::BF16:
      return 2;
    case DType::U8:
      return 1;
  }
  return 0;
}

[[nodiscard]] constexpr const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return "f32";
    case DType::F16:
      return "f16";
    case DType::BF16:
      return "bf16";
    case DType::F64:
      return "f64";
    case DType::I32:
      return "i32";
    case DType::I64:
      return "i64";
    case DType::U8:
      return "u8";
  }
  return "?";
}

/// The dtype of a C++ type; only the types that have arithmetic in C++ have one.
template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::F32;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::F64;
}
template <>
constexpr DType dtype_of<std::int32_t>() {
  return DType::I32;
}
template <>
constexpr DType dtype_of<std::int64_t>() {
  return DType::I64;
}
template <>
constexpr DType dtype_of<std::uint8_t>() {
  return DType::U8;
}

/// Up to six extents, row-major. A shape without extents is a scalar (one element).
class Dims {
 public:
  static constexpr std::size_t kMax = 6;

  constexpr Dims() = default;

  Dims(std::initializer_list<std::int64_t> extents)
      : Dims(std::span(extents.begin(), extents.size())) {}

  explicit Dims(std::span<const std::int64_t> extents) : size_(extents.size()) {
    require(size_ <= kMax, "a tensor has at most 6 extents");
    std::copy(extents.begin(), extents.end(), extents_.begin());
  }

  [[nodiscard]] constexpr std::size_t size() const { return size_; }
  [[nodiscard]] constexpr std::int64_t operator[](std::size_t i) const { return extents_[i]; }
  [[nodiscard]] constexpr std::int64_t* begin() { return extents_.data(); }
  [[nodiscard]] constexpr std::int64_t* end() { return extents_.data() + size_; }
  [[nodiscard]] constexpr const std::int64_t* begin() const { return extents_.data(); }
  [[nodiscard]] constexpr const std::int64_t* end() const { return extents_.data() + size_; }

  /// Product of the extents; 1 for a scalar.
  [[nodiscard]] constexpr std::int64_t elements() const {
    std::int64_t product = 1;
    for (const std::int64_t extent : *this) product *= extent;
    return product;
  }

  friend constexpr bool operator==(const Dims& a, const Dims& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  std::array<std::int64_t, kMax> extents_{};
  std::size_t size_ = 0;
};

/// "8x64" for messages.
[[nodiscard]] inline std::string to_string(const Dims& dims) {
  std::string text;
  for (const std::int64_t extent : dims) {
    if (!text.empty()) text += 'x';
    text += std::to_string(extent);
  }
  return text.empty() ? "scalar" : text;
}

inline constexpr std::size_t kAlignment = 64;

/// A typed, shaped block of memory on a 64-byte boundary (borrowed memory: wherever it lies).
/// Move-only: a send takes its tensor by value, a receive returns one.
/// Thread-safety: externally synchronised.
class Tensor {
 public:
  /// Returns memory to where it came from. `owner` is what was given at construction.
  using Release = void (*)(void* data, std::size_t bytes, void* owner) noexcept;

  Tensor() = default;

  /// Owns new, uninitialised memory. Throws std::bad_alloc; InvalidArgument on a negative extent.
  Tensor(DType dtype, const Dims& dims)
      : dtype_(dtype), dims_(dims), bytes_(checked_bytes(dtype, dims)) {
    data_ = ::operator new (std::max<std::size_t>(bytes_, 1), std::align_val_t{kAlignment});
    release_ = [](void* data, std::size_t, void*) noexcept {
      ::operator delete (data, std::align_val_t{kAlignment});
    };
  }

  /// Uses `data` (at least the tensor's bytes) and calls `release(data, bytes, owner)` at the end;
  /// a null `release` borrows, and the memory must outlive the tensor.
  Tensor(DType dtype, const Dims& dims, void* data, Release release, void* owner)
      : dtype_(dtype),
        dims_(dims),
        bytes_(checked_bytes(dtype, dims)),
        data_(data),
        release_(release),
        owner_(owner) {}

  Tensor(Tensor&& other) noexcept
      : dtype_(std::exchange(other.dtype_, DType::F32)),
        dims_(std::exchange(other.dims_, {})),
        bytes_(std::exchange(other.bytes_, 0)),
        data_(std::exchange(other.data_, nullptr)),
        release_(std::exchange(other.release_, nullptr)),
        owner_(std::exchange(other.owner_, nullptr)) {}

  Tensor& operator=(Tensor&& other) noexcept {
    Tensor moved(std::move(other));
    swap(moved);
    return *this;
  }

  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  ~Tensor() {
    if (data_ != nullptr && release_ != nullptr) release_(data_, bytes_, owner_);
  }

  void swap(Tensor& other) noexcept {
    std::swap(dtype_, other.dtype_);
    std::swap(dims_, other.dims_);
    std::swap(bytes_, other.bytes_);
    std::swap(data_, other.data_);
    std::swap(release_, other.release_);
    std::swap(owner_, other.owner_);
  }

  /// False for a default-constructed or moved-from tensor ("no gradient here").
  [[nodiscard]] explicit operator bool() const { return data_ != nullptr; }
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] const Dims& dims() const { return dims_; }
  [[nodiscard]] std::int64_t elements() const { return data_ == nullptr ? 0 : dims_.elements(); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

  /// First extent: samples, for everything that flows between stages.
  [[nodiscard]] std::int64_t rows() const { return dims_.size() == 0 ? 1 : dims_[0]; }

  /// Elements per row: the product of all extents but the first.
  [[nodiscard]] std::int64_t columns() const { return rows() == 0 ? 0 : dims_.elements() / rows(); }

  [[nodiscard]] void* data() { return data_; }
  [[nodiscard]] const void* data() const { return data_; }

  /// The elements. Throws InvalidArgument when T is not the dtype.
  template <class T>
  [[nodiscard]] std::span<T> as() {
    require(dtype_of<T>() == dtype_, "tensor holds another dtype than the one asked for");
    return {static_cast<T*>(data_), static_cast<std::size_t>(elements())};
  }

  template <class T>
  [[nodiscard]] std::span<const T> as() const {
    require(dtype_of<T>() == dtype_, "tensor holds another dtype than the one asked for");
    return {static_cast<const T*>(data_), static_cast<std::size_t>(elements())};
  }

  /// Gives the same memory another shape with as many elements.
  void reshape(const Dims& dims) {
    require(dims.elements() == dims_.elements(), "reshape must keep the number of elements");
    dims_ = dims;
  }

  void fill_zero() {
    if (bytes_ != 0) std::memset(data_, 0, bytes_);
  }

  /// A deep copy in memory of its own.
  [[nodiscard]] Tensor clone() const {
    if (data_ == nullptr) return {};
    Tensor copy(dtype_, dims_);
    if (bytes_ != 0) std::memcpy(copy.data_, data_, bytes_);
    return copy;
  }

  /// A tensor of rows [first, first+count) that borrows this one's memory and must not outlive it.
  [[nodiscard]] Tensor borrow_rows(std::int64_t first, std::int64_t count) {
    require(dims_.size() > 0 && first >= 0 && count >= 0 && first + count <= rows(),
            "rows out of range");
    Dims part = dims_;
    *part.begin() = count;
    auto* start = static_cast<std::byte*>(data_) +
                  static_cast<std::size_t>(first * columns()) * size_of(dtype_);
    return {dtype_, part, start, nullptr, nullptr};
  }

 private:
  static std::size_t checked_bytes(DType dtype, const Dims& dims) {
    std::size_t bytes = size_of(dtype);
    for (const std::int64_t extent : dims) {
      require(extent >= 0, "a tensor extent is at least 0");
      require(!__builtin_mul_overflow(bytes, static_cast<std::size_t>(extent), &bytes),
              "a tensor is too large to address");
    }
    return bytes;
  }

  DType dtype_ = DType::F32;
  Dims dims_;
  std::size_t bytes_ = 0;
  void* data_ = nullptr;
  Release release_ = nullptr;
  void* owner_ = nullptr;
};

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
    return {dtype, dims, store_->take(size_class(bytes)), &TensorPool::give_back, store_};
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
        for (void* block : blocks) ::operator delete (block, std::align_val_t{kAlignment});
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
        block = ::operator new (bytes, std::align_val_t{kAlignment});
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

/// The tensors that cross a stage boundary together: usually one, so four fit without allocation.
/// An empty list is two words; the places of tensors that are not there are never touched, because
/// lists are moved several times per action and most are short.
/// Thread-safety: externally synchronised.
class TensorList {
 public:
  TensorList() noexcept {}

  explicit TensorList(Tensor only) { push_back(std::move(only)); }

  TensorList(TensorList&& other) noexcept {
    if (!other.empty()) take_over(other);
  }

  TensorList& operator=(TensorList&& other) noexcept {
    if (this == &other) return *this;
    clear();
    if (!other.empty()) take_over(other);
    return *this;
  }

  TensorList(const TensorList&) = delete;
  TensorList& operator=(const TensorList&) = delete;

  ~TensorList() { clear(); }

  void push_back(Tensor tensor) {
    if (size_ < kFew) {
      std::construct_at(&few_[size_], std::move(tensor));
    } else {
      if (more_ == nullptr) more_ = std::make_unique<std::vector<Tensor>>();
      more_->push_back(std::move(tensor));
    }
    ++size_;
  }

  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] Tensor& operator[](std::size_t i) {
    return i < kFew ? few_[i] : (*more_)[i - kFew];
  }
  [[nodiscard]] const Tensor& operator[](std::size_t i) const {
    return i < kFew ? few_[i] : (*more_)[i - kFew];
  }

  void clear() noexcept {
    if (!empty()) drop();
  }

  [[nodiscard]] std::size_t bytes() const {
    std::size_t total = 0;
    for (std::size_t i = 0; i < size_; ++i) total += (*this)[i].bytes();
    return total;
  }

 private:
  static constexpr std::size_t kFew = 4;

  /// Into an empty list.
  void take_over(TensorList& other) noexcept {
    size_ = std::exchange(other.size_, 0);
    for (std::size_t i = 0; i < std::min(size_, kFew); ++i) {
      std::construct_at(&few_[i], std::move(other.few_[i]));
      std::destroy_at(&other.few_[i]);
    }
    more_ = std::move(other.more_);
  }

  void drop() noexcept {
    for (std::size_t i = 0; i < std::min(size_, kFew); ++i) std::destroy_at(&few_[i]);
    more_.reset();
    size_ = 0;
  }

  std::size_t size_ = 0;
  std::unique_ptr<std::vector<Tensor>> more_;  // the fifth and later ones
  union {
    Tensor few_[kFew];  // the first min(size_, kFew) are alive
  };
};

}  // namespace millrace
