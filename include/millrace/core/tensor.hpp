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
#include <new>
#include <span>
#include <string>
#include <utility>

#include "millrace/core/error.hpp"

// Lets AddressSanitizer find who reaches beyond a tensor, although there is a margin. Set by the
// asan preset, not by the compiler: a program with the sanitizer may link libraries without.
#ifdef MILLRACE_GUARD_MARGINS
extern "C" void __asan_poison_memory_region(const void* data, std::size_t bytes);
extern "C" void __asan_unpoison_memory_region(const void* data, std::size_t bytes);
#define MILLRACE_FORBID(data, bytes) __asan_poison_memory_region(data, bytes)
#define MILLRACE_ALLOW(data, bytes) __asan_unpoison_memory_region(data, bytes)
#else
#define MILLRACE_FORBID(data, bytes)
#define MILLRACE_ALLOW(data, bytes)
#endif
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

  /// Product of the extents, unchecked; 1 for a scalar. For memory ask bytes_of (tensor.hpp).
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

/// Memory on a 64-byte boundary with 64 bytes of zeros before and after it: a frame on the wire
/// can begin a little before its tensor. Throws std::bad_alloc.
[[nodiscard]] inline void* allocate_with_margins(std::size_t bytes) {
  auto* block = static_cast<std::byte*>(
      ::operator new (bytes + 2 * kAlignment, std::align_val_t{kAlignment}));
  for (std::byte* margin : {block, block + kAlignment + bytes}) {
    std::memset(margin, 0, kAlignment);
    MILLRACE_FORBID(margin, kAlignment);
  }
  return block + kAlignment;
}

inline void free_with_margins(void* data) noexcept {
  ::operator delete (static_cast<std::byte*>(data) - kAlignment, std::align_val_t{kAlignment});
}

/// The bytes of a tensor: the size of its elements times their number. Throws InvalidArgument for a
/// negative extent, and above 2^62 bytes, so that sums with margins and roundings cannot wrap.
[[nodiscard]] inline std::size_t bytes_of(DType dtype, const Dims& dims) {
  constexpr std::size_t kMost = std::size_t{1} << 62U;
  std::size_t bytes = size_of(dtype);
  for (const std::int64_t extent : dims) {
    require(extent >= 0,
            [&] { return "a tensor of " + to_string(dims) + ": an extent must be at least 0"; });
    const bool wraps = __builtin_mul_overflow(bytes, static_cast<std::size_t>(extent), &bytes);
    require(!wraps && bytes <= kMost, [&] {
      return "a tensor of " + to_string(dims) + " is too large to address: at most 2^62 bytes";
    });
  }
  return bytes;
}

/// Whether there is memory around a tensor's bytes that may be read.
enum class Margins : std::uint8_t {
  None,      ///< foreign memory, or the middle of another tensor
  Whole,     ///< kAlignment bytes before the first and after the last, see allocate_with_margins
  Reference  ///< there are no bytes at all, see Tensor::reference
};

/// How references to an object are counted; see Tensor::reference. Thread-safety: from any thread.
struct ReferenceCount {
  void (*retain)(void* object) noexcept;
  void (*release)(void* object) noexcept;
};

/// A typed, shaped block of memory on a 64-byte boundary (borrowed memory: wherever it lies).
/// Move-only: a send takes its tensor by value, a receive returns one.
/// Thread-safety: externally synchronised.
class Tensor {
 public:
  /// Returns memory to where it came from. `owner` is what was given at construction.
  using Release = void (*)(void* data, std::size_t bytes, void* owner) noexcept;

  Tensor() = default;

  /// Owns new memory, all zeros. Throws std::bad_alloc, and what bytes_of throws.
  Tensor(DType dtype, const Dims& dims) : Tensor(uninitialised(dtype, dims)) { fill_zero(); }

  /// As above with memory that holds anything, for a caller that writes all of it.
  [[nodiscard]] static Tensor uninitialised(DType dtype, const Dims& dims) {
    return {dtype,
            dims,
            allocate_with_margins(bytes_of(dtype, dims)),
            [](void* data, std::size_t, void*) noexcept { free_with_margins(data); },
            nullptr,
            Margins::Whole};
  }

  /// Uses `data` (at least the tensor's bytes) and calls `release(data, bytes, owner)` at the end;
  /// a null `release` borrows, and the memory must outlive the tensor.
  Tensor(DType dtype,
         const Dims& dims,
         void* data,
         Release release,
         void* owner,
         Margins margins = Margins::None)
      : dtype_(dtype),
        dims_(dims),
        bytes_(bytes_of(dtype, dims)),
        data_(data),
        release_(release),
        owner_(owner),
        margins_(margins) {}

  /// Carries an object of a host language between stages of one process: it has rows and no bytes,
  /// data() is the object. Takes over one reference. Nothing adds up, hashes or sends such a
  /// tensor; another_reference() is its copy. `count` must outlive it.
  [[nodiscard]] static Tensor reference(void* object,
                                        std::int64_t rows,
                                        const ReferenceCount& count) {
    return {DType::U8,
            {rows, 0},
            object,
            &end_reference,
            const_cast<ReferenceCount*>(&count),
            Margins::Reference};
  }

  [[nodiscard]] bool is_reference() const { return margins_ == Margins::Reference; }

  [[nodiscard]] Tensor another_reference() const {
    require(is_reference(), "this tensor is not a reference");
    const auto& count = *static_cast<const ReferenceCount*>(owner_);
    count.retain(data_);
    return reference(data_, dims_[0], count);
  }

  Tensor(Tensor&& other) noexcept
      : dtype_(std::exchange(other.dtype_, DType::F32)),
        dims_(std::exchange(other.dims_, {})),
        bytes_(std::exchange(other.bytes_, 0)),
        data_(std::exchange(other.data_, nullptr)),
        release_(std::exchange(other.release_, nullptr)),
        owner_(std::exchange(other.owner_, nullptr)),
        margins_(std::exchange(other.margins_, Margins::None)) {}

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
    std::swap(margins_, other.margins_);
  }

  /// False for a default-constructed or moved-from tensor ("no gradient here").
  [[nodiscard]] explicit operator bool() const { return data_ != nullptr; }
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] const Dims& dims() const { return dims_; }
  [[nodiscard]] std::int64_t elements() const { return data_ == nullptr ? 0 : dims_.elements(); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] Margins margins() const { return margins_; }

  /// The bytes with kAlignment more on either side, for who sends them in one piece with some of
  /// those. Throws InvalidArgument without margins.
  [[nodiscard]] std::span<const std::byte> bytes_and_margins() const {
    require(margins_ == Margins::Whole, "this tensor has no margins");
    const auto* first = static_cast<const std::byte*>(data_) - kAlignment;
    MILLRACE_ALLOW(first, kAlignment);
    MILLRACE_ALLOW(first + kAlignment + bytes_, kAlignment);
    return {first, bytes_ + 2 * kAlignment};
  }

  /// First extent: samples, for everything that flows between stages. A scalar has one row, a
  /// default-constructed or moved-from tensor none.
  [[nodiscard]] std::int64_t rows() const {
    if (dims_.size() == 0) return data_ == nullptr ? 0 : 1;
    return dims_[0];
  }

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
    require(bytes_of(dtype_, dims) == bytes_, "reshape must keep the number of elements");
    dims_ = dims;
  }

  void fill_zero() {
    if (bytes_ != 0) std::memset(data_, 0, bytes_);
  }

  /// A deep copy in memory of its own; of a reference another one.
  [[nodiscard]] Tensor clone() const {
    if (data_ == nullptr) return {};
    if (is_reference()) return another_reference();
    Tensor copy = uninitialised(dtype_, dims_);
    if (bytes_ != 0) std::memcpy(copy.data_, data_, bytes_);
    return copy;
  }

  /// A tensor of rows [first, first+count) that borrows this one's memory and must not outlive it.
  [[nodiscard]] Tensor borrow_rows(std::int64_t first, std::int64_t count) & {
    require(
        dims_.size() > 0 && first >= 0 && first <= rows() && count >= 0 && count <= rows() - first,
        "rows out of range");
    Dims part = dims_;
    *part.begin() = count;
    auto* start = static_cast<std::byte*>(data_) +
                  static_cast<std::size_t>(first * columns()) * size_of(dtype_);
    return {dtype_, part, start, nullptr, nullptr};
  }

 private:
  static void end_reference(void* object, std::size_t /*bytes*/, void* count) noexcept {
    static_cast<const ReferenceCount*>(count)->release(object);
  }

  DType dtype_ = DType::F32;
  Dims dims_;
  std::size_t bytes_ = 0;
  void* data_ = nullptr;
  Release release_ = nullptr;
  void* owner_ = nullptr;
  Margins margins_ = Margins::None;
};

}  // namespace millrace
#undef MILLRACE_FORBID
#undef MILLRACE_ALLOW
