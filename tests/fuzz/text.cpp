// Schedule CSV: bytes are read or refused, and what is read survives writing.
#include "millrace/scheduler/plan/text.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const millrace::CsvOptions options{.old_letters = (data[0] & 1U) != 0,
                                     .skip_sharding = (data[0] & 2U) != 0};
  const std::string text(data + 1, data + size);
  const millrace::ParsedProgram read = millrace::read_csv(text, options);
  if (read.program.has_value() == !read.diagnostics.empty()) std::abort();
  if (!read.program) return 0;
  for (const auto& rank : read.program->ranks)
    if (rank.empty()) return 0;  // only sharding was there, and it was skipped
  if (millrace::read_csv(millrace::write_csv(*read.program)).program != read.program) std::abort();
  return 0;
}
