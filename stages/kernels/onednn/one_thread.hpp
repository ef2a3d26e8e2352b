// oneDNN in one thread, which no signal interrupts. Debian's works with OpenMP, which keeps a
// number of threads for each thread that calls.
#pragma once

#include "stages/kernels/blocked_signals.hpp"

// Of OpenMP's own header, which clang does not have with gcc's library.
extern "C" int omp_get_max_threads();
extern "C" void omp_set_num_threads(int);

namespace millrace::onednn {

/// The calling thread's own number of OpenMP threads is 1, and its signals are blocked, while this
/// lives.
class OneThread {
 public:
  explicit OneThread(const PassContext& context)
      : signals_(context), before_(omp_get_max_threads()) {
    if (before_ != 1) omp_set_num_threads(1);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;
  ~OneThread() {
    if (before_ != 1) omp_set_num_threads(before_);
  }

 private:
  BlockedSignals signals_;
  int before_;
};

}  // namespace millrace::onednn
