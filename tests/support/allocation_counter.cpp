// Replaces the global operator new and delete by ones that count. In a file of its own, so that the
// compiler does not inline one without the other. Linked into the programs that ask for the count.
#include "support/allocation_counter.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables): as global as the operators
std::atomic<std::size_t> count{0};
std::atomic<std::size_t> given_back{0};
std::atomic<std::size_t> aligned_count{0};
std::atomic<std::size_t> aligned_given_back{0};
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

void* counted(std::size_t bytes, std::size_t alignment) {
  ++count;
  const std::size_t whole = (bytes + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, whole == 0 ? alignment : whole);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void take_back(void* memory) noexcept {
  if (memory != nullptr) ++given_back;
  std::free(memory);  // NOLINT(cppcoreguidelines-no-malloc): below every owner
}

void take_back_aligned(void* memory) noexcept {
  if (memory != nullptr) ++aligned_given_back;
  take_back(memory);
}

}  // namespace

std::size_t millrace::test::allocations() {
  return count;
}

std::size_t millrace::test::blocks_alive() {
  return count - given_back;
}

std::size_t millrace::test::aligned_allocations() {
  return aligned_count;
}

std::size_t millrace::test::aligned_blocks_alive() {
  return aligned_count - aligned_given_back;
}

void* operator new(std::size_t bytes) {
  return counted(bytes, alignof(std::max_align_t));
}

void* operator new(std::size_t bytes, std::align_val_t alignment) {
  ++aligned_count;
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

void operator delete(void* memory) noexcept {
  take_back(memory);
}

void operator delete(void* memory, std::size_t) noexcept {
  take_back(memory);
}

void operator delete(void* memory, std::align_val_t) noexcept {
  take_back_aligned(memory);
}

void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  take_back_aligned(memory);
}
