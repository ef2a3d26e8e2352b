// OpenBLAS is found where it is loaded: whichever BLAS PyTorch runs on is the machine's choice.
#include "torch/single_thread.hpp"

#include <ATen/Parallel.h>
#include <dlfcn.h>

namespace millrace::on_torch {
namespace {

struct OpenBlas {
  int (*count)() = nullptr;
  void (*set)(int) = nullptr;
};

OpenBlas find_open_blas() {
  const auto count = dlsym(RTLD_DEFAULT, "openblas_get_num_threads");
  const auto set = dlsym(RTLD_DEFAULT, "openblas_set_num_threads");
  if (count == nullptr || set == nullptr) return {};
  return {reinterpret_cast<int (*)()>(count), reinterpret_cast<void (*)(int)>(set)};
}

}  // namespace

void use_one_thread() {
  static const OpenBlas blas = find_open_blas();
  if (at::get_num_threads() != 1) at::set_num_threads(1);
  if (blas.count != nullptr && blas.count() != 1) blas.set(1);
}

}  // namespace millrace::on_torch
