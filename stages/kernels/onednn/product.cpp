// Products in f32 by oneDNN, through its plain call: no object to make or keep for a shape.
//
// Debian's oneDNN works with OpenMP, and its bits depend on the number of threads, which OpenMP
// keeps for each calling thread. So it is 1 for the time of a call. Alignment, an earlier call of
// the same shape and DNNL_DEFAULT_FPMATH_MODE change nothing; DNNL_MAX_CPU_ISA does, and is in the
// name that ranks compare. Tests hold all of this.
#include <algorithm>
#include <cstdint>
#include <new>
#include <string>
#include <unistd.h>

#include <oneapi/dnnl/dnnl.h>

#include "millrace/core/error.hpp"
#include "stages/kernels/backends.hpp"
#include "stages/kernels/onednn/one_thread.hpp"

namespace millrace::onednn {
namespace {

/// The library's words for its instruction sets. One that is newer than this list is a number.
std::string name_of(dnnl_cpu_isa_t isa) {
  switch (isa) {
    case dnnl_cpu_isa_sse41:
      return "sse41";
    case dnnl_cpu_isa_avx:
      return "avx";
    case dnnl_cpu_isa_avx2:
      return "avx2";
    case dnnl_cpu_isa_avx2_vnni:
      return "avx2_vnni";
    case dnnl_cpu_isa_avx512_core:
      return "avx512_core";
    case dnnl_cpu_isa_avx512_core_vnni:
      return "avx512_core_vnni";
    case dnnl_cpu_isa_avx512_core_bf16:
      return "avx512_core_bf16";
    case dnnl_cpu_isa_avx512_core_amx:
      return "avx512_core_amx";
    default:
      return "instruction set " + std::to_string(isa);
  }
}

std::string kibibytes(int cache) {
  return std::to_string(std::max(0L, ::sysconf(cache)) / 1024);
}

void multiply_at_once(const Gemm& product, const float* a, const float* b, float* c) {
  const auto [rows, columns, depth, a_transposed, b_transposed, accumulate, factors, a_stride] =
      product;
  const dnnl_status_t status = dnnl_sgemm(a_transposed ? 'T' : 'N',
                                          b_transposed ? 'T' : 'N',
                                          rows,
                                          columns,
                                          depth,
                                          1.0F,
                                          a,
                                          product.stride_of_a(),
                                          b,
                                          b_transposed ? depth : columns,
                                          accumulate ? 1.0F : 0.0F,
                                          c,
                                          columns);
  if (status == dnnl_out_of_memory) throw std::bad_alloc();
  if (status != dnnl_success)
    throw Error("oneDNN refused a product of " + std::to_string(rows) + "x" +
                std::to_string(depth) + " by " + std::to_string(depth) + "x" +
                std::to_string(columns) + " with status " + std::to_string(status));
}

}  // namespace

void multiply(
    const PassContext& context, const Gemm& product, const float* a, const float* b, float* c) {
  const OneThread one_thread(context);
  const std::int64_t at_once = rows_at_once(product);
  Gemm part = product;
  for (std::int64_t first = 0; first < product.rows; first += at_once) {
    part.rows = std::min(at_once, product.rows - first);
    multiply_at_once(part, a + first * product.stride_of_a(), b, c + first * product.columns);
  }
}

std::string name() {
  const dnnl_version_t* version = dnnl_version();
  return "oneDNN " + std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
         std::to_string(version->patch) + " " + name_of(dnnl_get_effective_cpu_isa()) +
         " (caches of " + kibibytes(_SC_LEVEL1_DCACHE_SIZE) + " and " +
         kibibytes(_SC_LEVEL2_CACHE_SIZE) + " KiB)";
}

}  // namespace millrace::onednn
