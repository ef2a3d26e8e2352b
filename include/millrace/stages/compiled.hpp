// What the passes were compiled by and for: two programs whose answers differ may round
// differently.
#pragma once

#include <string>

namespace millrace {

/// Compiler, its version, the widest vectors it was told to use, and whether it may fuse or
/// reorder sums, of this library's own code: "gcc 12.2.0, avx512, fma". Ranks compare it before
/// they begin, because it decides bits. Depends on nothing that happens at run time.
[[nodiscard]] std::string compiled_code();

}  // namespace millrace
