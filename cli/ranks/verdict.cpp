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

/// Those for which the others waited in vain. The exit code; 0 where there were none.
int Supervisor::name_absent() const {
  int code = kDone;
  for (const Worker& worker : workers_) {
    if (!worker.absent) continue;
    if (code == kDone) print_tail(worker);
    if (code != kLostPeer) code = worker.killed_by_us ? kHang : kLostPeer;
    std::cerr << "millrace launch: " << name_of(worker) << " " << absence_of(worker)
              << " (join_launch)\n";
  }
  return code;
}

/// Those that stood still until we killed them. Returns whether there were any.
bool Supervisor::name_stopped() const {
  bool any = false;
  for (const Worker& worker : workers_) {
    if (!worker.killed_by_us || !worker.stopped) continue;
    any = true;
    std::cerr << "millrace launch: " << name_of(worker) << " " << stop_of(worker) << '\n';
  }
  return any;
}

/// They may be right: a program prints its help without meeting anybody.
int Supervisor::note_strangers() const {
  const auto not_joined = [](const Worker& worker) { return !worker.mark.empty(); };
  if (received_ == 0 && std::any_of(workers_.begin(), workers_.end(), not_joined))
    std::cerr << "millrace launch: no rank has joined, each worked alone (join_launch)\n";
  return kDone;
}

/// Says what happened, the cause last.
int Supervisor::verdict() const {
  if (const int code = name_absent(); code != kDone) return code;
  const Worker* worst = culprit();
  if (worst == nullptr) return name_stopped() ? kHang : note_strangers();
  const Worker* other = WIFSIGNALED(*worst->status) ? witness() : nullptr;
  if (other != nullptr) explain(*other);
  explain(*worst);
  // The ranks found it silent; that it was stopped is known only here.
  const bool gave_up = blames_another(*worst->status) || is_aborted(*worst->status);
  if (gave_up && name_stopped()) return kHang;
  return code_of(*worst->status);
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
