// Manifest of a checkpoint: bytes are read or refused, also with a right hash, and what is read
// survives writing.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>

#include "millrace/core/error.hpp"
#include "millrace/training/checkpoint.hpp"
#include "millrace/training/state.hpp"

namespace {

std::optional<millrace::Manifest> read(const std::string& text) {
  try {
    return millrace::read_manifest(text, "manifest");
  } catch (const millrace::DataError&) {
    return std::nullopt;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string text(data, data + size);
  static_cast<void>(read(text));
  constexpr std::size_t kTail = 4 + 32;
  if (size < kTail) return 0;
  text.replace(size - kTail, 32, 32, '0');
  text.replace(size - kTail, 32, millrace::bytes_digest(std::as_bytes(std::span(text))));
  const auto manifest = read(text);
  if (manifest && read(millrace::write_manifest(*manifest)) != manifest) std::abort();
  return 0;
}
