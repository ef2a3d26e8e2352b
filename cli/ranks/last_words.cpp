// See last_words.hpp. The handler notes the signal; a thread of its own finds the words.
#include "cli/ranks/last_words.hpp"

#include <chrono>
#include <condition_variable>
#include <iostream>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "cli/train/stop_signals.hpp"
#include "cli/train/wish.hpp"

namespace millrace::cli {

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kLook = 50ms;
/// Of the second that some engines leave between asking and killing.
constexpr auto kStepMayTake = 500ms;

Wish asked;

void note_wish(int signal) {
  asked.note(signal);
}

}  // namespace

LastWords::LastWords(std::vector<const Endpoint*> endpoints) : endpoints_(std::move(endpoints)) {
  if (endpoints_.empty()) return;
  asked.forget();
  struct sigaction action {};
  action.sa_handler = note_wish;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGTERM, &action, nullptr);
  thread_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
}

LastWords::~LastWords() {
  if (!endpoints_.empty()) ::signal(SIGTERM, SIG_DFL);
}

void LastWords::say() const {
  for (const Endpoint* endpoint : endpoints_)
    std::cerr << "millrace: rank " + std::to_string(endpoint->rank().value) +
                     " was asked to end; it " + endpoint->doing() + "\n"
              << std::flush;
}

void LastWords::watch(const std::stop_token& stop) const {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  for (std::optional<Clock::time_point> since; !stop.stop_requested();) {
    never.wait_for(lock, stop, kLook, [] { return false; });
    if (asked.signal() != 0) {
      say();
      ::signal(SIGTERM, SIG_DFL);
      ::raise(SIGTERM);
    }
    if (StopSignals::received() == 0) continue;
    if (!since) since = Clock::now();
    if (Clock::now() - *since < kStepMayTake) continue;
    say();
    return;
  }
}

}  // namespace millrace::cli
