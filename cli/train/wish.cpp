// Times are of the steady clock: a wish may not depend on the date.
#include "cli/train/wish.hpp"

#include <chrono>
#include <csignal>

namespace millrace::cli {

namespace {

constexpr std::int64_t kOneWish = 1'000;

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

void Wish::note(int signal) {
  const std::int64_t now = milliseconds_now();
  if (signal_.load() == 0) {
    since_.store(now);
    signal_.store(signal);
  } else if (now - since_.load() >= kOneWish) {
    end_by(signal);
  }
}

void Wish::forget() {
  signal_.store(0);
}

}  // namespace millrace::cli
