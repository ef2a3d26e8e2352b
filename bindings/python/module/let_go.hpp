// Ending what belongs to Python from threads that do not have the interpreter's lock. Such a thread
// may not wait for it: threads of the transport would, while the program that ends waits for them.
#pragma once

#include <pybind11/pybind11.h>
#include <utility>

namespace millrace::python {

namespace py = pybind11;

/// Calls end(what), which needs the lock: at once where this thread has it, otherwise in the next
/// let_go_of_waiting(). Never when the interpreter has ended. Thread-safe.
void let_go(void* what, void (*end)(void*)) noexcept;

/// Ends what threads without the lock have let go of. Needs the lock.
void let_go_of_waiting() noexcept;

/// work() without the lock, and behind it the end of all that it let go of.
template <class Work>
auto unlocked(Work&& work) {
  struct Behind {
    ~Behind() { let_go_of_waiting(); }
  };
  const Behind behind;
  const py::gil_scoped_release without;
  return std::forward<Work>(work)();
}

}  // namespace millrace::python
