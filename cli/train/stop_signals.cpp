// Times are of the steady clock: a request must not depend on the date.
#include "cli/train/stop_signals.hpp"

#include <chrono>
#include <csignal>

#include "cli/signal_thread.hpp"

namespace millrace::cli {

namespace {

constexpr std::int64_t kOneRequest = 1'000;

StopRequest request;  // of the process

std::int64_t milliseconds_now() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

}  // namespace

void end_by(int signal) {
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, signal);
  ::signal(signal, SIG_DFL);
  ::pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
  ::raise(signal);
}

void StopRequest::note(int signal) {
  const std::int64_t now = milliseconds_now();
  if (signal_.load() == 0) {
    since_.store(now);
    signal_.store(signal);
  } else if (now - since_.load() >= kOneRequest) {
    end_by(signal);
  }
}

void StopRequest::forget() {
  signal_.store(0);
}

StopSignals::StopSignals() {
  request.forget();
  SignalThread::listen(request, {SIGTERM, SIGINT});
}

StopSignals::~StopSignals() {
  if (received() == 0) SignalThread::stop_listening(request);
}

int StopSignals::received() {
  return request.signal();
}

}  // namespace millrace::cli
