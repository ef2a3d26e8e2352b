// Plan file: bytes are read or refused, and what is read survives writing.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "millrace/scheduler/plan/text.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(data, data + size);
  const millrace::ParsedPlan read = millrace::read_plan(text);
  if (read.plan.has_value() == !read.diagnostics.empty()) std::abort();
  if (!read.plan) return 0;
  if (millrace::read_plan(millrace::write_plan(*read.plan)).plan != read.plan) std::abort();
  return 0;
}
