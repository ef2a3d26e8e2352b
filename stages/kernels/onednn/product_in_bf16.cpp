// Products of bf16 numbers with sums in f32, by oneDNN's matmul: its plain call knows f32 alone.
//
// The object of a shape is asked for at every call: the library keeps the code that it makes of it
// (its primitive cache), and to find that takes some 5 microseconds, which pays_in_bf16 counts. So
// nothing is kept here, and two pipelines share nothing that changes.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include <oneapi/dnnl/dnnl.hpp>
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

#include "millrace/core/error.hpp"
#include "stages/kernels/backends.hpp"
#include "stages/kernels/onednn/one_thread.hpp"
#include "stages/kernels/precision.hpp"

namespace millrace::onednn {
namespace {

using dnnl::memory;

/// A matrix with a leading dimension: the distance of its rows or, transposed, of its columns.
memory::desc matrix(memory::dims extents,
                    memory::data_type type,
                    std::int64_t stride,
                    bool turned) {
  return {std::move(extents), type, turned ? memory::dims{1, stride} : memory::dims{stride, 1}};
}

/// Factors are read alone, which the library's type cannot say.
memory on(const memory::desc& what, const dnnl::engine& engine, const std::uint16_t* factors) {
  return {what, engine, const_cast<std::uint16_t*>(factors)};
}

dnnl::matmul::primitive_desc described(const Gemm& product, const dnnl::engine& engine) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (product.accumulate) {
    dnnl::post_ops after;
    after.append_sum(1.0F);
    attributes.set_post_ops(after);
  }
  constexpr auto kNarrow = memory::data_type::bf16;
  const auto& [rows, columns, depth, a_transposed, b_transposed, accumulate, factors, a_stride] =
      product;
  const dnnl::matmul::desc what(
      matrix({rows, depth}, kNarrow, product.stride_of_a(), a_transposed),
      matrix({depth, columns}, kNarrow, b_transposed ? depth : columns, b_transposed),
      matrix({rows, columns}, memory::data_type::f32, columns, false));
  return {what, attributes, engine};
}

}  // namespace

// By the processor's own instruction where this file is compiled for it: three times as fast. It
// takes what is too small to be normal for 0, as the instructions that multiply do.
void round_factors(const float* from, std::int64_t count, std::uint16_t* to) {
  std::int64_t i = 0;
#if defined(__AVX512BF16__)
  for (; i + 16 <= count; i += 16) {
    const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_loadu_ps(from + i));
    std::memcpy(to + i, &rounded, sizeof rounded);
  }
#endif
  narrow(DType::BF16, from + i, count - i, to + i);
}

bool pays_in_bf16(const Gemm& product) {
  const auto& [rows, columns, depth, a_transposed, b_transposed, accumulate, factors, a_stride] =
      product;
  return std::min({rows, columns, depth}) >= 32 && rows * columns * depth >= 1 << 21 &&
         (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_bf16) ==
             dnnl_cpu_isa_avx512_core_bf16;
}

void multiply_in_bf16(const PassContext& context,
                      const Gemm& product,
                      const std::uint16_t* a,
                      const std::uint16_t* b,
                      float* c) {
  const OneThread one_thread(context);
  try {
    const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    dnnl::stream stream(engine);
    const auto description = described(product, engine);
    const auto room = static_cast<std::int64_t>(description.scratchpad_desc().get_size());
    Tensor scratch = context.make(DType::U8, {room});
    dnnl::matmul(description)
        .execute(
            stream,
            {{DNNL_ARG_SRC, on(description.src_desc(), engine, a)},
             {DNNL_ARG_WEIGHTS, on(description.weights_desc(), engine, b)},
             {DNNL_ARG_DST, memory(description.dst_desc(), engine, c)},
             {DNNL_ARG_SCRATCHPAD, memory(description.scratchpad_desc(), engine, scratch.data())}});
    stream.wait();
  } catch (const dnnl::error& error) {
    throw Error("oneDNN refused a product in bf16 of " + std::to_string(product.rows) + "x" +
                std::to_string(product.depth) + " by " + std::to_string(product.depth) + "x" +
                std::to_string(product.columns) + ": " + error.what());
  }
}

}  // namespace millrace::onednn
