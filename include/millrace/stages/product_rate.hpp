// How fast a training is beside the machine that it runs on: operations that a model's matrix
// products need, and operations that the processor makes of products.
#pragma once

#include "millrace/core/dtype.hpp"
#include "millrace/stages/models.hpp"

namespace millrace {

/// Operations (a multiplication and an addition are two) of all matrix products that training needs
/// for data of this size: of every layer once forward, once for the gradients of its inputs and
/// once for those of its weights (attention: twice for its inputs), but for gradients that nobody
/// takes, as by the model's inputs. Attention counts the keys that a query sees. What a recompute
/// or an implementation does again does not count. Throws as infer_types.
[[nodiscard]] double training_operations(const ModelSpec& model, const UnitSize& size);

/// Operations per second that so many threads make together, at the same time, of products of
/// 256x512 by 512x256 through the library that multiplies in layers; each thread counts its median
/// product of three or more, behind one that is not timed. `precision` as ModelSpec's: f16
/// multiplies in f32. Cost: about 20 ms, memory of 1.25 MiB a thread. Throws InvalidArgument when
/// threads < 1. Thread-safe.
[[nodiscard]] double product_rate(DType precision, int threads);

}  // namespace millrace
