// See stop_signals.hpp. A handler may do no more than note the number.
#include "cli/train/stop_signals.hpp"

#include <atomic>
#include <csignal>

namespace millrace::cli {

namespace {

std::atomic<int> noted{0};
static_assert(std::atomic<int>::is_always_lock_free);

void note_signal(int signal) {
  noted.store(signal);
}

}  // namespace

StopSignals::StopSignals() {
  noted.store(0);
  struct sigaction action {};
  action.sa_handler = note_signal;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  for (const int signal : {SIGTERM, SIGINT}) ::sigaction(signal, &action, nullptr);
}

StopSignals::~StopSignals() {
  for (const int signal : {SIGTERM, SIGINT}) ::signal(signal, SIG_DFL);
}

int StopSignals::received() {
  return noted.load();
}

}  // namespace millrace::cli
