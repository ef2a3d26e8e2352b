// The thread of signals notes the wish; another one finds the words.
#include "cli/ranks/exit_report.hpp"

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <iostream>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "cli/signal_thread.hpp"
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

}  // namespace

ExitReport::ExitReport(std::vector<const Endpoint*> endpoints) : endpoints_(std::move(endpoints)) {
  if (endpoints_.empty()) return;
  asked.forget();
  SignalThread::listen(asked, {SIGTERM});
  thread_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
}

ExitReport::~ExitReport() {
  SignalThread::stop_listening(asked);
}

void ExitReport::say() const {
  for (const Endpoint* endpoint : endpoints_)
    std::cerr << "millrace: rank " + std::to_string(endpoint->rank().value) +
                     " was asked to end; it " + endpoint->doing() + "\n"
              << std::flush;
}

void ExitReport::watch(const std::stop_token& stop) const {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  for (std::optional<Clock::time_point> since; !stop.stop_requested();) {
    never.wait_for(lock, stop, kLook, [] { return false; });
    if (asked.signal() != 0) {
      say();
      end_by(SIGTERM);
    }
    if (StopSignals::received() == 0) continue;
    if (!since) since = Clock::now();
    if (Clock::now() - *since < kStepMayTake) continue;
    say();
    return;
  }
}

}  // namespace millrace::cli
