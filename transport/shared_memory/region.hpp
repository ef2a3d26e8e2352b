// Memory that two processes see: files without a name, whose size is sealed, because a reader of a
// file that shrinks is ended by the system, and whose pages are there before anybody writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace millrace::shared_memory {

/// An open descriptor. Thread-safety: externally synchronised.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor();

  [[nodiscard]] explicit operator bool() const { return number_ >= 0; }
  [[nodiscard]] int number() const { return number_; }

 private:
  int number_ = -1;
};

/// Throws TransportError: "cannot WHAT: " and what the system says.
[[noreturn]] void refuse(const std::string& what);

/// Mapped memory. Thread-safety: externally synchronised.
class Mapping {
 public:
  Mapping() = default;
  Mapping(void* data, std::size_t bytes) : data_(static_cast<std::byte*>(data)), bytes_(bytes) {}
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// What its receivers may do with it.
enum class Sharing : bool {
  Read,  ///< written by the owner alone
  Write  ///< payloads: a received tensor is the receiver's to change, as stages do
};

/// A region and the file to give away, which may be closed afterwards.
struct Region {
  Descriptor file;
  Mapping memory;
};

/// New memory of zeros. Throws TransportError when the system has none.
[[nodiscard]] Region make_region(std::size_t bytes, Sharing sharing);

/// What another process gave. Throws TransportError unless it is a region of exactly that size that
/// cannot shrink.
[[nodiscard]] Mapping map_region(const Descriptor& file, std::uint64_t bytes, Sharing sharing);

}  // namespace millrace::shared_memory
