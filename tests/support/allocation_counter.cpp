// Replaces the global operator new and delete by ones that count. In a file of its own, so that the
// compiler does not inline one without the other. Linked into the programs that ask for the count.
#include "support/allocation_counter.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): as global as the operators
std::atomic<std::size_t> count{0};

void* counted(std::size_t bytes, std::size_t alignment) {
  ++count;
  const std::size_t whole = (bytes + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, whole == 0 ? alignment : whole);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

std::size_t millrace::test::allocations() {
  return count;
}

void* operator new(std::size_t bytes) {
  return counted(bytes, alignof(std::max_align_t));
}

void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}

// The library's stable_sort asks for its buffer this way; the pair must match.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return counted(bytes, alignof(std::max_align_t));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

// NOLINTBEGIN(cppcoreguidelines-no-malloc): what gives the memory back is below every owner
void operator delete(void* memory) noexcept {
  std::free(memory);
}

void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}

void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
// NOLINTEND(cppcoreguidelines-no-malloc)
