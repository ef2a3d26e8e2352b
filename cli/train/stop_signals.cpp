// One wish for the process, which the thread of signals notes.
#include "cli/train/stop_signals.hpp"

#include <csignal>

#include "cli/signal_thread.hpp"

namespace millrace::cli {

namespace {

Wish wish;

}  // namespace

StopSignals::StopSignals() {
  wish.forget();
  SignalThread::listen(wish, {SIGTERM, SIGINT});
}

StopSignals::~StopSignals() {
  if (received() == 0) SignalThread::stop_listening(wish);
}

int StopSignals::received() {
  return wish.signal();
}

}  // namespace millrace::cli
