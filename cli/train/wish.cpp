// See wish.hpp. A handler may only call what is safe there: clock_gettime, signal and raise are.
#include "cli/train/wish.hpp"

#include <csignal>
#include <ctime>

namespace millrace::cli {

namespace {

constexpr std::int64_t kOneWish = 1'000;
static_assert(std::atomic<int>::is_always_lock_free);
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

std::int64_t milliseconds_now() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000 + now.tv_nsec / 1'000'000;
}

}  // namespace

void Wish::note(int signal) {
  const std::int64_t now = milliseconds_now();
  if (signal_.load() == 0) {
    since_.store(now);
    signal_.store(signal);
  } else if (now - since_.load() >= kOneWish) {
    ::signal(signal, SIG_DFL);
    ::raise(signal);
  }
}

void Wish::forget() {
  signal_.store(0);
}

}  // namespace millrace::cli
