// One pointer per thread.
#include "millrace/torch/pass.hpp"

namespace millrace {
namespace {

thread_local const PassContext* current_pass = nullptr;

}  // namespace

TorchPass::TorchPass(const PassContext& context) : context_(context), before_(current_pass) {
  current_pass = &context_;
}

TorchPass::~TorchPass() {
  current_pass = before_;
}

const PassContext* TorchPass::current() {
  return current_pass;
}

}  // namespace millrace
