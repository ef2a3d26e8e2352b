// What the passes were compiled by and for, and what multiplies their matrices: two programs whose
// answers differ may round differently.
#pragma once

#include <string>

#include "millrace/core/tensor.hpp"
#include "millrace/stages/models.hpp"
#include "millrace/stages/stage.hpp"

namespace millrace {

/// Compiler, its version, the widest vectors it was actual to use, and whether it may fuse or
/// reorder sums, of this library's own code: "gcc 12.2.0, avx512, fma". Ranks compare it before
/// they begin, because it decides bits. Depends on nothing that happens at run time.
[[nodiscard]] std::string compiled_code();

/// The libraries that multiply matrices, with their versions and, where a library decides at run
/// time, the widest instructions that it uses here and the caches that it cuts its work by: "oneDNN
/// 2.6.3 avx512_core_bf16 (caches of 32 and 1024 KiB), Eigen 3.4.0" (small products, and all in
/// f64, are Eigen's), or "Eigen 3.4.0". Ranks compare it before they begin, and a checkpoint says
/// it. Thread-safe.
[[nodiscard]] std::string product_libraries();

/// Operations (a multiplication and an addition are two) of all matrix products that training needs
/// for data of this size: of every layer once forward, once for the gradients of its inputs and
/// once for those of its weights (attention: twice for its inputs), except for gradients that no
/// layer uses, as of the model's inputs. Attention counts the keys that a query sees. What a
/// recompute or an implementation does again does not count. Throws as infer_types.
[[nodiscard]] double training_operations(const ModelSpec& model, const UnitSize& size);

/// Operations per second of `threads` threads together, at the same time, of products of
/// 256x512 by 512x256 through the library that multiplies in layers; each thread counts its median
/// product of three or more, after one that is not timed. `precision` as ModelSpec's: f16
/// multiplies in f32. Cost: about 20 ms, memory of 1.25 MiB a thread. Throws InvalidArgument when
/// threads < 1. Thread-safe.
[[nodiscard]] double product_rate(DType precision, int threads);

}  // namespace millrace
