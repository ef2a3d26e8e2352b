#include "torch/threads.hpp"

#include <ATen/Parallel.h>

#include "torch/open_blas.hpp"

namespace millrace::on_torch {

void use_threads(int count) {
  const OpenBlas& blas = open_blas();
  if (at::get_num_threads() != count) at::set_num_threads(count);
  if (blas.count != nullptr && blas.set != nullptr && blas.count() != count) blas.set(count);
}

}  // namespace millrace::on_torch
