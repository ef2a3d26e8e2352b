// SIGTERM and SIGINT of a command that trains: one thread that computes nothing takes them, so that
// no thread that computes ever runs a handler.
#pragma once

#include <initializer_list>
#include <thread>

#include "cli/train/stop_signals.hpp"

namespace millrace::cli {

/// Blocks both signals in the calling thread, and so in every thread that it starts later, and
/// takes them on a thread of its own. A signal without a listener does what it would do unblocked:
/// it ends the process, unless it was ignored from the start. Both stay blocked after this object's
/// end, when the command has only to exit. Thread-safety: one at a time, made before any other
/// thread.
class SignalThread {
 public:
  SignalThread();
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;
  ~SignalThread();

  /// Notes `signals` in `request` from now on; of several listeners the newest. Any thread.
  static void listen(StopRequest& request, std::initializer_list<int> signals);
  /// Ends that; the request must outlive it.
  static void stop_listening(const StopRequest& request);

 private:
  std::jthread thread_;
};

}  // namespace millrace::cli
