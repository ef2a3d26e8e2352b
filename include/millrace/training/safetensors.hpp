// The safetensors format: named tensors in one file that every framework reads, and that holds no
// code. A file is the length of its header (u64, little-endian), the header (JSON) and the tensors'
// bytes without gaps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/core/tensor.hpp"

namespace millrace {

/// Texts beside the tensors, `__metadata__` in the header.
using SafetensorsMetadata = std::map<std::string, std::string>;

/// A tensor of a file that was read. Thread-safety: immutable, share freely.
struct SafetensorsEntry {
  std::string name;
  std::string type;                   ///< as the format calls it: "F32", "BF16", "BOOL", ...
  std::vector<std::int64_t> extents;  ///< row-major; none: a scalar
  std::span<const std::byte> bytes;   ///< little-endian, in the file's memory, at any alignment

  /// The type as this library has it; none for those that it cannot hold.
  [[nodiscard]] std::optional<DType> dtype() const;

  /// A copy in aligned memory. Throws DataError, naming the tensor, for a type that this library
  /// cannot hold and for more than Dims::kMax extents.
  [[nodiscard]] Tensor tensor() const;
};

/// A file that was read and found right.
struct Safetensors {
  SafetensorsMetadata metadata;
  std::vector<SafetensorsEntry> entries;  ///< as their bytes lie in the file
  std::vector<std::size_t> by_name;       ///< indices of `entries` in ascending order of names

  /// Null when there is no such tensor. Cost: O(log entries).
  [[nodiscard]] const SafetensorsEntry* find(std::string_view name) const;
};

/// Bytes of a header at most, and of a name.
inline constexpr std::uint64_t kSafetensorsHeaderMost = 100'000'000;
inline constexpr std::size_t kSafetensorsNameMost = 1024;

/// Reads a whole file that lies in memory, which the entries point into. Strict: throws DataError,
/// with `file`, the tensor and what was expected, when
/// - the header is longer than kSafetensorsHeaderMost or than the file, does not begin with `{`, is
///   not JSON in UTF-8, names anything twice, or has a member that the format does not know;
/// - a name is longer than kSafetensorsNameMost or has control characters;
/// - the tensors' bytes do not lie one behind another from the beginning of the data to the end of
///   the file, or one has not the size of its type and extents.
/// A file of another kind (git-lfs pointer, PyTorch zip or pickle, gzip, HDF5, GGUF, JSON) is
/// named. No memory is taken for what the header merely claims. Cost: O(header + n log n) for n
/// tensors, which are not looked at.
[[nodiscard]] Safetensors read_safetensors(std::span<const std::byte> bytes,
                                           const std::string& file);

/// A tensor of a file that will be written.
struct SafetensorsPlace {
  std::string name;
  DType dtype = DType::F32;
  Dims dims;
};

/// A whole file in memory, whose tensors are filled in afterwards, any number of times: header and
/// places depend on names, types and shapes alone, whatever their order here. Tensors lie in the
/// order of the reference writer (widest elements first, then by name); the data begins at a
/// multiple of 4,096 bytes.
/// Thread-safety: externally synchronised.
///
///     SafetensorsImage image({{"weight", DType::F32, {10, 64}}});
///     image.fill("weight", parameter.value);
///     stream.write(image.bytes());
class SafetensorsImage {
 public:
  /// The places are zero. Throws InvalidArgument when a name comes twice, is longer than
  /// kSafetensorsNameMost, has control characters, is not UTF-8 or is `__metadata__`, and when the
  /// header gets too long.
  explicit SafetensorsImage(std::vector<SafetensorsPlace> places,
                            const SafetensorsMetadata& metadata = {});

  /// Copies a tensor to its place. Throws InvalidArgument when there is none of that name, type and
  /// shape. Cost: O(bytes + log places).
  void fill(std::string_view name, const Tensor& tensor);

  /// The file.
  [[nodiscard]] std::span<const std::byte> bytes() const;
  /// The bytes of one tensor in it. Throws InvalidArgument when there is none of that name.
  [[nodiscard]] std::span<const std::byte> bytes_of(std::string_view name) const;
  /// Sorted by name.
  [[nodiscard]] std::span<const SafetensorsPlace> places() const { return places_; }

 private:
  [[nodiscard]] std::size_t number_of(std::string_view name) const;

  std::vector<SafetensorsPlace> places_;  // by name
  std::vector<std::size_t> begins_;       // in the file, by place
  Tensor file_;
};

}  // namespace millrace
