// The build fields that ranks compare: version, processor, compiler and GEMM library.
#include <string>

#include "millrace/stages/products.hpp"
#include "millrace/training/ranks.hpp"

namespace millrace {

namespace {

std::string dispatch_level() {
  if (__builtin_cpu_supports("avx512f")) return "avx512";
  return __builtin_cpu_supports("avx2") ? "avx2" : "baseline";
}

}  // namespace

HelloFields build_fields() {
  return {{"library version", MILLRACE_VERSION},
          {"processor", dispatch_level()},
          {"compiled code", compiled_code()},
          {"products", product_libraries()}};
}

}  // namespace millrace
