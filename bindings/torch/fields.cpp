#include "millrace/torch/fields.hpp"

#include <ATen/Version.h>
#include <algorithm>
#include <dlfcn.h>
#include <filesystem>
#include <sstream>
#include <string>
#include <torch/version.h>

#include "torch/open_blas.hpp"

namespace millrace {
namespace {

/// What stands behind `name` in PyTorch's description of itself, up to the end of the line.
std::string described_as(const std::string& name) {
  const std::string text = at::show_config();
  const std::size_t found = text.find(name);
  if (found == std::string::npos) return "unknown";
  const std::size_t from = found + name.size();
  return text.substr(from, text.find('\n', from) - from);
}

std::string file_of(const void* symbol) {
  Dl_info info{};
  if (symbol == nullptr || dladdr(symbol, &info) == 0) return "unknown";
  std::error_code ignored;
  return std::filesystem::weakly_canonical(info.dli_fname, ignored).filename().string();
}

std::string blas() {
  const on_torch::OpenBlas& found = on_torch::open_blas();
  std::string text =
      found.config != nullptr ? found.config() : file_of(on_torch::symbol_called("sgemm_"));
  std::ranges::replace(text, '\n', ' ');
  return text;
}

std::string one_dnn() {
  std::ostringstream text;
  text << described_as("MKL-DNN ");
  const auto isa =
      reinterpret_cast<int (*)()>(on_torch::symbol_called("dnnl_get_effective_cpu_isa"));
  if (isa != nullptr) text << ", instructions 0x" << std::hex << isa();
  return text.str();
}

}  // namespace

HelloFields torch_fields() {
  return {{"PyTorch", TORCH_VERSION},
          {"PyTorch's kernels", described_as("CPU capability usage: ")},
          {"BLAS of PyTorch", blas()},
          {"oneDNN of PyTorch", one_dnn()}};
}

}  // namespace millrace
