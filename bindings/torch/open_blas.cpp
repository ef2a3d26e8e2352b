#include "torch/open_blas.hpp"

#include <dlfcn.h>

namespace millrace::on_torch {

void* symbol_called(const char* name) {
  return dlsym(RTLD_DEFAULT, name);
}

const OpenBlas& open_blas() {
  static const OpenBlas found{
      reinterpret_cast<int (*)()>(symbol_called("openblas_get_num_threads")),
      reinterpret_cast<void (*)(int)>(symbol_called("openblas_set_num_threads")),
      reinterpret_cast<char* (*)()>(symbol_called("openblas_get_config"))};
  return found;
}

}  // namespace millrace::on_torch
