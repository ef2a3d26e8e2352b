// See stop_signals.hpp. A handler may do no more than note the number.
#include "cli/train/stop_signals.hpp"

#include <csignal>

#include "cli/train/wish.hpp"

namespace millrace::cli {

namespace {

Wish wish;

void note_signal(int signal) {
  wish.note(signal);
}

}  // namespace

StopSignals::StopSignals() {
  wish.forget();
  struct sigaction action {};
  action.sa_handler = note_signal;
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGTERM, SIGINT}) ::sigaction(signal, &action, nullptr);
}

StopSignals::~StopSignals() {
  if (received() != 0) return;
  for (const int signal : {SIGTERM, SIGINT}) ::signal(signal, SIG_DFL);
}

int StopSignals::received() {
  return wish.signal();
}

}  // namespace millrace::cli
