// Long computations that answer Ctrl-C: the work runs without the interpreter's lock on a thread of
// its own, while the thread that called looks for signals.
#pragma once

#include <atomic>
#include <chrono>
#include <future>
#include <optional>
#include <pybind11/pybind11.h>

#include "millrace/scheduler/plan/parameters.hpp"

namespace millrace::python {

namespace py = pybind11;

/// `work(stop)` on another thread; what it returns or throws. A signal whose handler raises ends
/// it through `stop`, and that exception is thrown once the work has ended. Call with the
/// interpreter's lock, which `work` does not have.
template <class Work>
auto interruptible(Work&& work) {
  std::atomic<bool> asked = false;
  const Stop stop = [&asked] { return asked.load(std::memory_order_relaxed); };
  std::optional<py::error_already_set> signal;
  auto ended = [&] {
    const py::gil_scoped_release unlocked;
    auto running = std::async(std::launch::async, [&] { return work(stop); });
    while (running.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready) {
      if (asked) continue;
      const py::gil_scoped_acquire locked;
      if (PyErr_CheckSignals() == 0) continue;
      signal.emplace();
      asked = true;
    }
    return running;
  }();
  if (signal) throw *signal;
  return ended.get();
}

}  // namespace millrace::python
