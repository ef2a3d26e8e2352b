// What the passes were compiled by and for, and what multiplies their matrices: two programs whose
// answers differ may round differently.
#pragma once

#include <string>

namespace millrace {

/// Compiler, its version, the widest vectors it was told to use, and whether it may fuse or
/// reorder sums, of this library's own code: "gcc 12.2.0, avx512, fma". Ranks compare it before
/// they begin, because it decides bits. Depends on nothing that happens at run time.
[[nodiscard]] std::string compiled_code();

/// The libraries that multiply matrices, with their versions and, where a library decides at run
/// time, the widest instructions that it uses here and the caches that it cuts its work by: "oneDNN
/// 2.6.3 avx512_core_bf16 (caches of 32 and 1024 KiB), Eigen 3.4.0" (small products, and all in
/// f64, are Eigen's), or "Eigen 3.4.0". Ranks compare it before they begin, and a checkpoint says
/// it. Thread-safe.
[[nodiscard]] std::string product_libraries();

}  // namespace millrace
