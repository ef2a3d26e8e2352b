// How a launch ended, when all its ranks have: who caused it, what is said of that, and the exit
// code.
#include <algorithm>
#include <csignal>
#include <cstring>
#include <deque>
#include <fstream>
#include <iostream>
#include <string>
#include <sys/wait.h>

#include "cli/exit_codes.hpp"
#include "cli/ranks/supervisor.hpp"

namespace millrace::cli {

namespace {

constexpr std::size_t kTailLines = 25;

}  // namespace

const Supervisor::Worker* Supervisor::culprit() const {
  const Worker* worst = nullptr;
  for (const Worker& worker : workers_) {
    if (worker.killed_by_us || weight_of(*worker.status) == 0) continue;
    if (worst == nullptr || weight_of(*worker.status) > weight_of(*worst->status) ||
        (weight_of(*worker.status) == weight_of(*worst->status) && worker.ended < worst->ended))
      worst = &worker;
  }
  return worst;
}

/// The rank that reports one that was ended by a signal and so reports nothing itself. One that had
/// finished before has no report.
const Supervisor::Worker* Supervisor::witness() const {
  for (const Worker& worker : workers_)
    if (!worker.killed_by_us && blames_another(*worker.status)) return &worker;
  return nullptr;
}

std::string Supervisor::ranks_of(const Worker& worker) const {
  const std::ptrdiff_t first = (&worker - workers_.data()) * options_.places;
  if (options_.places == 1) return "rank " + std::to_string(first);
  return "ranks " + std::to_string(first) + " to " + std::to_string(first + options_.places - 1);
}

std::string Supervisor::name_of(const Worker& worker) const {
  return (options_.places == 1 ? "" : "the process of ") + ranks_of(worker);
}

std::string Supervisor::stop_of(const Worker& worker) {
  return "was stopped (signal " + std::to_string(worker.stopped->signal) + ") and did not go on";
}

/// The last lines of its log, of this attempt. What rank 0 said was passed on at once.
void Supervisor::print_tail(const Worker& worker) const {
  std::deque<std::string> tail;
  std::ifstream log;
  if (&worker != workers_.data()) log.open(worker.log);
  log.seekg(worker.log_begin);
  for (std::string line; std::getline(log, line);) {
    tail.push_back(std::move(line));
    if (tail.size() > kTailLines) tail.pop_front();
  }
  for (const std::string& line : tail) std::cerr << "[" << ranks_of(worker) << "] " << line << '\n';
}

void Supervisor::explain(const Worker& worker) const {
  print_tail(worker);
  std::cerr << "millrace launch: " << name_of(worker) << " " << end_of(*worker.status) << '\n';
}

/// Those for which the others waited in vain.
void Supervisor::name_absent() const {
  print_tail(*std::ranges::find(workers_, true, &Worker::absent));
  for (const Worker& worker : workers_)
    if (worker.absent)
      std::cerr << "millrace launch: " << name_of(worker) << " " << absence_of(worker)
                << " (join_launch)\n";
}

/// One that stood still until we killed it; else, of ranks that gave up on another, the only one
/// that had to be killed.
const Supervisor::Worker* Supervisor::hung() const {
  const Worker* found = nullptr;
  for (const Worker& worker : workers_) {
    if (!worker.killed_by_us) continue;
    if (worker.stopped) return &worker;
    found = &worker;
  }
  const auto killed = std::ranges::count(workers_, true, &Worker::killed_by_us);
  return killed == 1 ? found : nullptr;
}

void Supervisor::name_stopped() const {
  for (const Worker& worker : workers_)
    if (worker.killed_by_us && worker.stopped)
      std::cerr << "millrace launch: " << name_of(worker) << " " << stop_of(worker) << '\n';
}

/// They may be right: a program prints its help without meeting anybody.
void Supervisor::note_strangers() const {
  const auto not_joined = [](const Worker& worker) { return !worker.mark.empty(); };
  if (std::any_of(workers_.begin(), workers_.end(), not_joined))
    std::cerr << "millrace launch: no rank has joined, each worked alone (join_launch)\n";
}

/// A rank that ends by itself takes its step with it: then the others are where it was.
std::optional<std::int64_t> Supervisor::step_of(const Worker& worker) const {
  if (!options_.step_of) return std::nullopt;
  return options_.step_of(static_cast<int>(&worker - workers_.data()) * options_.places);
}

int Supervisor::code_of_signal() const {
  if (received_ == 0) return kDone;
  return received_ == SIGINT ? kInterrupted : kTerminated;
}

JobEnd Supervisor::end_of_job() const {
  const auto end = [this](const Worker& worker, int code, const std::string& how) {
    return JobEnd{.code = code,
                  .what = name_of(worker) + " " + how,
                  .step = worker.step ? worker.step : step_};
  };
  for (const int code : {kLostPeer, kHang})
    for (const Worker& worker : workers_)
      if (worker.absent && worker.killed_by_us == (code == kHang))
        return end(worker, code, absence_of(worker));
  const Worker *worst = culprit(), *stopped = hung();
  const bool gave_up =
      worst == nullptr || blames_another(*worst->status) || is_aborted(*worst->status);
  // The ranks found it silent; that it was stopped is known only here.
  if (gave_up && stopped != nullptr && stopped->stopped)
    return end(*stopped, kHang, stop_of(*stopped));
  if (worst == nullptr) return {};
  const int code = code_of(*worst->status);
  return code == kHang && stopped != nullptr ? end(*stopped, code, "hung")
                                             : end(*worst, code, end_of(*worst->status));
}

void Supervisor::report() const {
  if (received_ != 0) return;
  if (std::ranges::find(workers_, true, &Worker::absent) != workers_.end()) return name_absent();
  const Worker* worst = culprit();
  if (worst == nullptr) {
    name_stopped();
    if (end_of_job().code == kDone) note_strangers();
    return;
  }
  const Worker* other = WIFSIGNALED(*worst->status) ? witness() : nullptr;
  if (other != nullptr) explain(*other);
  explain(*worst);
  if (blames_another(*worst->status) || is_aborted(*worst->status)) name_stopped();
}

int weight_of(int status) {
  if (WIFSIGNALED(status)) return 3;
  const int code = WEXITSTATUS(status);
  if (code == kDone) return 0;
  if (code == kLostPeer) return 1;  // another rank was lost: find it
  return code == kHang ? 2 : 3;
}

bool blames_another(int status) {
  return weight_of(status) == 1 || weight_of(status) == 2;
}

bool is_aborted(int status) {
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

int code_of(int status) {
  return WIFSIGNALED(status) ? kLostPeer : WEXITSTATUS(status);
}

std::string end_of(int status) {
  if (WIFSIGNALED(status))
    return std::string("was ended by signal ") + std::to_string(WTERMSIG(status)) + " (" +
           ::sigdescr_np(WTERMSIG(status)) + ")";
  return "ended with exit code " + std::to_string(WEXITSTATUS(status));
}

}  // namespace millrace::cli
