// Operations tell their outputs to a callback of the thread.
#include "torch/held_memory.hpp"

#include <algorithm>

namespace millrace::on_torch {
namespace {

thread_local HeldMemory* watched = nullptr;

bool holds(const std::vector<const void*>& list, const void* data) {
  return std::ranges::find(list, data) != list.end();
}

void note_outputs(const at::RecordFunction& operation, at::ObserverContext* /*context*/) {
  if (watched == nullptr) return;
  for (const c10::IValue& output : operation.outputs()) {
    if (output.isTensor()) watched->note(output.toTensor());
    if (output.isTensorList())
      for (const at::Tensor& tensor : output.toTensorVector()) watched->note(tensor);
  }
}

}  // namespace

Watching::Watching(HeldMemory* memory) : watches_(memory != nullptr) {
  if (!watches_) return;
  watched = memory;
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(nullptr, &note_outputs)
          .needsOutputs(true)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

Watching::~Watching() {
  if (!watches_) return;
  at::removeCallback(handle_);
  watched = nullptr;
}

void HeldMemory::note(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  seen_.emplace(storage, tensor.storage().getWeakStorageImpl());
}

std::size_t HeldMemory::bytes(const std::vector<const void*>& others,
                              const std::vector<const void*>& given) const {
  std::size_t total = 0;
  for (const auto& [address, weak] : seen_) {
    const auto storage = weak.lock();
    if (!storage || storage->nbytes() == 0 || holds(others, storage->data())) continue;
    const bool is_theirs = storage.use_count() == 2 && holds(given, storage->data());
    if (!is_theirs) total += storage->nbytes();
  }
  return total;
}

}  // namespace millrace::on_torch
