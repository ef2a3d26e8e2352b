// OpenBLAS, found where it is loaded: whichever BLAS PyTorch runs on is the machine's choice.
#pragma once

namespace millrace::on_torch {

/// Functions of OpenBLAS; null where another BLAS multiplies.
struct OpenBlas {
  int (*count)() = nullptr;
  void (*set)(int) = nullptr;
  char* (*config)() = nullptr;
};

[[nodiscard]] const OpenBlas& open_blas();

/// The address of a symbol in what is loaded; null where nothing has it.
[[nodiscard]] void* symbol_called(const char* name);

}  // namespace millrace::on_torch
