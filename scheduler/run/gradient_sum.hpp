// Gradients added one to another: what reductions and outputs with several consumers are made of.
#pragma once

#include "millrace/core/ids.hpp"
#include "millrace/core/tensor.hpp"
#include "millrace/core/tensor_pool.hpp"

namespace millrace::run {

/// sum += term, element by element, in their own type. Throws Mismatch when they differ in dtype or
/// shape, InvalidArgument for a dtype other than f32 and f64.
void add_gradient(Tensor& sum, const Tensor& term, Stage stage);

[[nodiscard]] Tensor copy_into(TensorPool& pool, const Tensor& from);

}  // namespace millrace::run
