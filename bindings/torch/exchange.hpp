// Tensors of ours as tensors of PyTorch and back, the memory shared.
#pragma once

#include <ATen/core/Tensor.h>
#include <string>
#include <vector>

#include "millrace/core/tensor_list.hpp"
#include "millrace/stages/stage.hpp"

namespace millrace::on_torch {

/// The memory becomes that of the result; it is copied where it lies off 64-byte boundaries, so
/// that bits do not depend on where a caller's data lies. Undefined for an empty tensor.
[[nodiscard]] at::Tensor taken(Tensor tensor);
[[nodiscard]] std::vector<at::Tensor> taken(TensorList tensors);

/// A copy, which lives on when the list does not.
[[nodiscard]] std::vector<at::Tensor> copied(const TensorList& tensors);

/// What another stage gets: the same memory, dense and row-major, without the graph. Throws
/// InvalidArgument for a dtype that tensors of ours do not have, and for more than 6 extents;
/// `what` begins the sentence.
[[nodiscard]] Tensor given(const PassContext& context, const at::Tensor& tensor, const char* what);
[[nodiscard]] TensorList given(const PassContext& context, const std::vector<at::Tensor>& outputs);

/// As above, but for its receiver alone: copied when somebody else holds the memory. An empty
/// tensor for an undefined one.
[[nodiscard]] Tensor given_away(const PassContext& context, at::Tensor tensor);

/// Memory of the module's, as long as the result lives.
[[nodiscard]] Tensor shared(const at::Tensor& tensor);

}  // namespace millrace::on_torch
