// Safetensors: bytes are refused or hold exactly the tensors that their header lists.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "millrace/core/error.hpp"
#include "millrace/training/checkpoint.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  millrace::Safetensors file;
  try {
    file = millrace::read_safetensors(bytes, "file");
  } catch (const millrace::DataError&) {
    return 0;
  }
  std::size_t held = 0;
  for (const millrace::SafetensorsEntry& entry : file.entries) {
    held += entry.bytes.size();
    if (entry.dtype() && entry.extents.size() <= millrace::Dims::kMax &&
        entry.tensor().bytes() != entry.bytes.size())
      std::abort();
  }
  if (held > size) std::abort();
  return 0;
}
