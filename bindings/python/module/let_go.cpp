// What waits for the interpreter's lock to be ended; see let_go.hpp.
#include "module/let_go.hpp"

#include <mutex>
#include <vector>

namespace millrace::python {

namespace {

struct Owned {
  void* what;
  void (*end)(void*);
};

struct Waiting {
  std::mutex mutex;
  std::vector<Owned> owned;
};

/// Never destroyed: threads may outlive what static destructors end.
Waiting& waiting() {
  static Waiting* const all = new Waiting;
  return *all;
}

}  // namespace

void let_go(void* what, void (*end)(void*)) noexcept {
  if (Py_IsInitialized() == 0) return;
  if (PyGILState_Check() != 0) return end(what);
  const std::lock_guard lock(waiting().mutex);
  waiting().owned.push_back({what, end});
}

void let_go_of_waiting() noexcept {
  std::vector<Owned> owned;
  {
    const std::lock_guard lock(waiting().mutex);
    owned.swap(waiting().owned);
  }
  for (const Owned& one : owned) one.end(one.what);
}

}  // namespace millrace::python
