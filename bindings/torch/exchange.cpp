// Owners on both sides: a tensor of PyTorch holds ours in its deleter, ours holds a handle of
// PyTorch's.
#include "torch/exchange.hpp"

#include <ATen/ATen.h>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "millrace/core/error.hpp"

namespace millrace::on_torch {
namespace {

at::ScalarType scalar_type(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return at::kFloat;
    case DType::F16:
      return at::kHalf;
    case DType::BF16:
      return at::kBFloat16;
    case DType::F64:
      return at::kDouble;
    case DType::I32:
      return at::kInt;
    case DType::I64:
      return at::kLong;
    case DType::U8:
      return at::kByte;
  }
  return at::kFloat;
}

std::optional<DType> dtype_of_torch(at::ScalarType type) {
  for (const DType dtype :
       {DType::F32, DType::F16, DType::BF16, DType::F64, DType::I32, DType::I64, DType::U8})
    if (scalar_type(dtype) == type) return dtype;
  return {};
}

at::IntArrayRef sizes_of(const Tensor& tensor) {
  return {tensor.dims().begin(), tensor.dims().size()};
}

at::Tensor copy_of(const Tensor& tensor) {
  at::Tensor copy = at::empty(sizes_of(tensor), at::TensorOptions(scalar_type(tensor.dtype())));
  if (tensor.bytes() != 0) std::memcpy(copy.data_ptr(), tensor.data(), tensor.bytes());
  return copy;
}

DType checked_dtype(const at::Tensor& tensor, const char* what) {
  const auto dtype = dtype_of_torch(tensor.scalar_type());
  require(dtype.has_value(), [&] {
    return std::string(what) + " is of " + at::toString(tensor.scalar_type()) +
           "; stages exchange f32, f16, bf16, f64, i32, i64 and u8";
  });
  require(tensor.dim() <= static_cast<std::int64_t>(Dims::kMax), [&] {
    return std::string(what) + " has " + std::to_string(tensor.dim()) +
           " extents; stages exchange tensors of at most " + std::to_string(Dims::kMax);
  });
  return *dtype;
}

Dims dims_of(const at::Tensor& tensor) {
  return Dims(std::span<const std::int64_t>(tensor.sizes().data(), tensor.sizes().size()));
}

/// Ours over the memory of a dense tensor, which it keeps alive.
Tensor around(const at::Tensor& dense, DType dtype) {
  auto owner = std::make_unique<at::Tensor>(dense);
  void* data = owner->data_ptr();
  return {dtype,
          dims_of(dense),
          data,
          [](void*, std::size_t, void* held) noexcept { delete static_cast<at::Tensor*>(held); },
          owner.release()};
}

}  // namespace

at::Tensor taken(Tensor tensor) {
  if (!tensor) return {};
  if (reinterpret_cast<std::uintptr_t>(tensor.data()) % kAlignment != 0) return copy_of(tensor);
  const auto held = std::make_shared<Tensor>(std::move(tensor));  // by the deleter's copies
  return at::from_blob(
      held->data(),
      sizes_of(*held),
      [held](void*) {},
      at::TensorOptions(scalar_type(held->dtype())));
}

std::vector<at::Tensor> taken(TensorList tensors) {
  std::vector<at::Tensor> all;
  all.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) all.push_back(taken(std::move(tensors[i])));
  return all;
}

std::vector<at::Tensor> copied(const TensorList& tensors) {
  std::vector<at::Tensor> all;
  all.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i)
    all.push_back(tensors[i] ? copy_of(tensors[i]) : at::Tensor());
  return all;
}

Tensor given(const PassContext& context, const at::Tensor& tensor, const char* what) {
  require(tensor.defined(), [&] { return std::string(what) + " is undefined"; });
  const DType dtype = checked_dtype(tensor, what);
  if (tensor.numel() == 0) return context.make(dtype, dims_of(tensor));
  return around(tensor.detach().contiguous(), dtype);
}

TensorList given(const PassContext& context, const std::vector<at::Tensor>& outputs) {
  TensorList list;
  for (const at::Tensor& output : outputs)
    list.push_back(given(context, output, "an output of the stage"));
  return list;
}

Tensor given_away(const PassContext& context, at::Tensor tensor) {
  if (!tensor.defined()) return {};
  at::Tensor dense = tensor.contiguous();
  tensor.reset();
  if (dense.has_storage() && dense.storage().use_count() > 1) dense = dense.clone();
  return given(context, dense, "a gradient");
}

Tensor shared(const at::Tensor& tensor) {
  return around(tensor.detach(), checked_dtype(tensor, "a parameter"));
}

}  // namespace millrace::on_torch
