// Waits for signals by sigwait, so that no handler is ever installed.
#include "cli/signal_thread.hpp"

#include <algorithm>
#include <csignal>
#include <mutex>
#include <ranges>
#include <vector>

namespace millrace::cli {

namespace {

struct Listener {
  StopRequest* request;
  std::vector<int> signals;
};

std::mutex listening;  // guards the listeners
std::vector<Listener> listeners;

sigset_t taken_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT}) sigaddset(&set, signal);
  return set;
}

bool is_ignored(int signal) {
  struct sigaction action {};
  ::sigaction(signal, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

void take(int signal) {
  const std::lock_guard lock(listening);
  for (const Listener& listener : std::views::reverse(listeners))
    if (std::ranges::find(listener.signals, signal) != listener.signals.end())
      return listener.request->note(signal);
  if (!is_ignored(signal)) end_by(signal);
}

void take_all(const std::stop_token& stop) {
  const sigset_t set = taken_signals();
  for (int signal = 0; ::sigwait(&set, &signal) == 0 && !stop.stop_requested();) take(signal);
}

}  // namespace

SignalThread::SignalThread() {
  const sigset_t set = taken_signals();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  thread_ = std::jthread(take_all);
}

SignalThread::~SignalThread() {
  thread_.request_stop();
  ::pthread_kill(thread_.native_handle(), SIGTERM);  // ends its wait
}

void SignalThread::listen(StopRequest& request, std::initializer_list<int> signals) {
  const std::lock_guard lock(listening);
  listeners.push_back({&request, signals});
}

void SignalThread::stop_listening(const StopRequest& request) {
  const std::lock_guard lock(listening);
  std::erase_if(listeners, [&](const Listener& listener) { return listener.request == &request; });
}

}  // namespace millrace::cli
