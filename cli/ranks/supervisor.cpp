#include "cli/ranks/supervisor.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <iostream>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>

#include "cli/exit_codes.hpp"
#include "cli/numbers.hpp"
#include "millrace/core/error.hpp"

namespace millrace::cli {

namespace {

constexpr std::size_t kAtOnce = 4096;  // bytes
constexpr std::size_t kMostUnread = std::size_t{1} << 16U;

/// A hang-up that is ignored stays so, here and in the workers: under nohup the work continues when
/// its user has gone. Otherwise it counts as a termination. SIGINT and SIGTERM are taken even where
/// they are ignored: scripts ignore SIGINT for what they start with `&`, and it is sent on purpose.
sigset_t signals_to_watch() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM}) sigaddset(&set, signal);
  struct sigaction hang_up {};
  ::sigaction(SIGHUP, nullptr, &hang_up);
  if (hang_up.sa_handler != SIG_IGN) sigaddset(&set, SIGHUP);
  return set;
}

/// Of a worker, which inherits what is ignored and what is blocked. System calls only. The default
/// comes first: what was sent meanwhile waits until it is unblocked, and is not ignored then.
void restore_default_signals(const sigset_t& watched) {
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  for (const int signal : {SIGINT, SIGTERM}) ::sigaction(signal, &standard, nullptr);
  ::pthread_sigmask(SIG_UNBLOCK, &watched, nullptr);
}

std::vector<std::string> lines_of(const Variables& variables) {
  std::vector<std::string> lines;
  for (const auto& [name, value] : variables) lines.push_back(name + "=" + value);
  return lines;
}

std::string seconds_of(std::chrono::milliseconds time) {
  return plain(static_cast<double>(time.count()) / 1000) + " s";
}

cpu_set_t cores_from(int first, int count) {
  const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int core = first; core < first + count; ++core)
    CPU_SET(static_cast<unsigned>(core) % cores, &set);
  return set;
}

/// Between fork and exec: takes no memory.
void say(std::initializer_list<std::string_view> parts, int file) {
  for (const std::string_view part : parts)
    static_cast<void>(::write(file, part.data(), part.size()));
}

}  // namespace

/// Texts as a program is given them.
class ProgramWords {
 public:
  explicit ProgramWords(std::vector<std::string> texts) : texts_(std::move(texts)) {
    for (std::string& text : texts_) pointers_.push_back(text.data());
    pointers_.push_back(nullptr);
  }

  [[nodiscard]] char* const* get() const { return pointers_.data(); }

 private:
  std::vector<std::string> texts_;
  std::vector<char*> pointers_;
};

/// What a worker needs between fork and exec, where nothing may take memory: another thread of the
/// launcher may hold the allocator's lock, which the child cannot release.
struct ExecWords {
  ProgramWords arguments, variables;
  cpu_set_t cores;
  std::string name;  // of the rank
};

Supervisor::Supervisor(SupervisorOptions options)
    : options_(std::move(options)),
      logs_(options_.log_directory),
      watched_(signals_to_watch()),
      signals_(::signalfd(-1, &watched_, SFD_CLOEXEC | SFD_NONBLOCK)) {
  if (signals_ < 0)
    throw Error(std::string("cannot watch signals: ") + std::generic_category().message(errno));
  ::pthread_sigmask(SIG_BLOCK, &watched_, nullptr);
  ::signal(SIGCHLD, SIG_DFL);  // were it ignored, the status of an ended worker would be lost
}

Supervisor::~Supervisor() {
  signal_all(SIGKILL);
  for (Worker& worker : workers_) {
    if (!worker.status) ::waitpid(worker.process, nullptr, 0);
    if (worker.pidfd >= 0) ::close(worker.pidfd);
  }
  for (const int file : {errors_, first_log_, signals_})
    if (file >= 0) ::close(file);
  // The signals stay blocked: one that comes now is for the next attempt.
}

void Supervisor::exec_worker(const RankStart& start,
                             int rank,
                             int errors,
                             const ExecWords& words) const {
  // Between fork and exec: system calls only.
  ::setpgid(0, 0);
  restore_default_signals(watched_);
  if (options_.bind_cores) ::sched_setaffinity(0, sizeof words.cores, &words.cores);
  const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ::dup2(nothing, STDIN_FILENO);
  ::dup2(errors, STDERR_FILENO);
  if (rank != 0) ::dup2(errors, STDOUT_FILENO);
  if (start.keys >= 0) ::fcntl(start.keys, F_SETFD, 0);
  // The log's first line is there before the rank takes room elsewhere. What rank 0 says comes on
  // the terminal, where this would disturb; another worker of ours says it itself.
  std::array<char, 16> digits{};
  const char* end = std::to_chars(digits.begin(), digits.end(), ::getpid()).ptr;
  const std::string_view process(digits.data(), static_cast<std::size_t>(end - digits.data()));
  if (rank == 0)
    say({words.name, ": process ", process, "; its results are on standard output\n"}, first_log_);
  else if (!start.joined_mark.empty())
    say({words.name, ": process ", process, "\n"}, STDERR_FILENO);
  ::execvpe(words.arguments.get()[0], words.arguments.get(), words.variables.get());
  const char* reason = ::strerrordesc_np(errno);
  say({words.arguments.get()[0], ": ", reason == nullptr ? "cannot be run" : reason, "\n"},
      STDERR_FILENO);
  ::_exit(127);
}

pid_t Supervisor::start(const RankStart& start) {
  const int rank = static_cast<int>(workers_.size()) * options_.places;
  // All memory is taken before the process is there.
  const ExecWords words{ProgramWords(start.command),
                        ProgramWords(lines_of(start.variables)),
                        cores_from(rank, options_.places),
                        "rank " + std::to_string(rank)};
  Worker worker;
  worker.mark = start.joined_mark;
  worker.log = logs_.path(rank);
  workers_.reserve(workers_.size() + 1);
  std::array<int, 2> ends = {-1, -1};
  int errors = logs_.open(rank);
  worker.log_begin = ::lseek(errors, 0, SEEK_END);
  if (rank == 0) {
    first_log_ = errors;
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw Error("cannot make a pipe");
    errors_ = ends[0];
    errors = ends[1];
  }
  const pid_t parent = ::getpid();
  worker.process = ::fork();
  if (worker.process == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);  // ended before it could be promised
    exec_worker(start, rank, errors, words);
  }
  const int reason = errno;
  ::close(errors);
  if (worker.process < 0)
    throw Error(std::string("cannot start a process: ") + std::generic_category().message(reason));
  ::setpgid(worker.process, worker.process);  // both sides set it, in any order
  worker.pidfd = static_cast<int>(::syscall(SYS_pidfd_open, worker.process, 0));
  last_joined_ = Clock::now();
  workers_.push_back(std::move(worker));
  return workers_.back().process;
}

void Supervisor::signal_all(int signal) {
  for (Worker& worker : workers_) {
    if (worker.status || worker.process <= 0) continue;
    worker.killed_by_us = true;
    ::kill(-worker.process, signal);
    ::kill(-worker.process, SIGCONT);  // a stopped process would never receive it
  }
}

void Supervisor::take_signal() {
  signalfd_siginfo info{};
  if (::read(signals_, &info, sizeof info) != sizeof info) return;
  const int signal = static_cast<int>(info.ssi_signo);
  if (received_ != 0) return signal_all(SIGKILL);  // asked twice: at once
  received_ = signal;
  signal_all(signal);
  kill_at_ = Clock::now() + options_.grace;
}

void Supervisor::copy_errors() {
  std::array<char, kAtOnce> bytes{};
  const ssize_t count = ::read(errors_, bytes.data(), bytes.size());
  if (count > 0) {
    note_of_first({bytes.data(), static_cast<std::size_t>(count)});
    unread_.append(bytes.data(), static_cast<std::size_t>(count));
    return pass_on();
  }
  if (count < 0 && errno == EINTR) return;  // there may be more
  ::close(errors_);
  errors_ = -1;
}

/// What rank 0 has written is in the pipe when it ends. A process that it started may hold the
/// pipe open for ever, and write to it: that is read for the grace, or until a signal comes.
void Supervisor::read_rest() {
  const auto end = workers_.empty() ? Clock::now() : workers_.front().ended + options_.grace;
  std::size_t late = 0;  // bytes that were asked for after that time: a pipe holds no more
  while (errors_ >= 0 && late <= kMostUnread) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
    const int longest = received_ != 0 ? 0 : static_cast<int>(std::max<std::int64_t>(left, 0));
    std::array<pollfd, 2> items = {pollfd{errors_, POLLIN, 0}, pollfd{signals_, POLLIN, 0}};
    ::poll(items.data(), items.size(), longest);
    if ((items[1].revents & POLLIN) != 0) take_signal();
    if (items[0].revents != 0) copy_errors();
    if (longest == 0 && items[0].revents == 0) break;
    if (longest == 0) late += kAtOnce;
  }
  if (errors_ < 0) return;
  const std::string note =
      "a process that rank 0 started holds its standard error open; it is no longer read\n";
  note_of_first(note);
  std::cerr << "millrace launch: " << note;
}

/// The output of rank 0 need not be read: what has no room waits here, and of too much the oldest
/// lines go. The log has all.
void Supervisor::pass_on() {
  unread_.erase(0, terminal_.write(unread_));
  if (unread_.size() <= kMostUnread) return;
  const std::size_t begun = unread_.find('\n') + 1;  // a line that may have gone out in part
  const std::size_t cut = unread_.find('\n', begun + unread_.size() - kMostUnread);
  if (cut != std::string::npos) unread_.erase(begun, cut + 1 - begun);
}

void Supervisor::note_of_first(std::string_view text) const {
  static_cast<void>(::write(first_log_, text.data(), text.size()));
}

/// True when it has ended just now.
bool Supervisor::reap(Worker& worker) {
  int status = 0;
  constexpr int kEverything = WNOHANG | WUNTRACED | WCONTINUED;
  if (worker.status || ::waitpid(worker.process, &status, kEverything) != worker.process)
    return false;
  if (WIFCONTINUED(status)) worker.stopped.reset();
  if (WIFSTOPPED(status)) worker.stopped = {WSTOPSIG(status), Clock::now()};
  if (WIFCONTINUED(status) || WIFSTOPPED(status)) return false;
  worker.step = step_of(worker);
  worker.status = status;
  worker.ended = Clock::now();
  ::kill(-worker.process, SIGKILL);  // and all that it started
  return true;
}

/// A rank that gave up on another may end before it: the cause is reported all the same.
void Supervisor::heed_end(const Worker& worker) {
  if (weight_of(*worker.status) == 0) return;
  if (!kill_at_) {
    if (blames_another(*worker.status)) end_absent(true);  // its own timeout has passed
    kill_at_ = worker.ended + options_.grace;
  }
  announce(worker);
}

/// Only causes: a rank that gave up on another one is not to blame, and ranks that were built for
/// different things report it to each other.
void Supervisor::announce(const Worker& worker) {
  if (weight_of(*worker.status) < 3 || code_of(*worker.status) == kMismatch) return;
  const bool stood_still = worker.killed_by_us && worker.stopped;
  if (worker.killed_by_us && !stood_still) return;
  publish(name_of(worker) + " " + (stood_still ? stop_of(worker) : end_of(*worker.status)));
}

/// The first one; written aside and moved, so that no half message is read.
void Supervisor::publish(const std::string& message) {
  if (options_.failure_notice.empty() || std::exchange(published_, true)) return;
  const std::string aside = options_.failure_notice + ".new";
  std::ofstream(aside) << message << '\n';
  std::rename(aside.c_str(), options_.failure_notice.c_str());
}

void Supervisor::look_for_joined(Worker& worker) {
  if (worker.mark.empty() || ::access(worker.mark.c_str(), F_OK) != 0) return;
  worker.mark.clear();
  last_joined_ = Clock::now();
  ++joined_;
}

std::string Supervisor::absence_of(const Worker& worker) const {
  if (worker.killed_by_us) return "did not join within " + seconds_of(options_.join_timeout);
  return end_of(*worker.status) + " and had not joined";
}

/// Those that keep the others waiting: they ended well, or go on `late`, without having joined.
void Supervisor::end_absent(bool late) {
  for (Worker& worker : workers_) look_for_joined(worker);  // in its last moment, too
  for (Worker& worker : workers_) {
    const bool ended_well = worker.status && weight_of(*worker.status) == 0;
    if (worker.mark.empty() || !(worker.status ? ended_well && joined_ > 0 : late)) continue;
    worker.absent = true;
    kill_at_ = Clock::now() + options_.grace;
    if (worker.status) continue;
    worker.killed_by_us = true;
    ::kill(-worker.process, SIGTERM);
    ::kill(-worker.process, SIGCONT);
  }
  const auto first = std::ranges::find(workers_, true, &Worker::absent);
  if (first != workers_.end()) publish(name_of(*first) + " " + absence_of(*first));
}

/// The ranks watch each other; this is for one that stops when no other is left to see it.
void Supervisor::end_stopped() {
  for (Worker& worker : workers_) {
    if (worker.status || worker.killed_by_us || !worker.stopped) continue;
    if (Clock::now() - worker.stopped->since < options_.heartbeat_timeout + options_.grace)
      continue;
    worker.killed_by_us = true;
    ::kill(-worker.process, SIGKILL);
  }
}

int Supervisor::wait_ms() const {
  const auto awaited = [](const Worker& worker) { return !worker.mark.empty(); };
  const bool looks_often = kill_at_ || options_.step_of != nullptr;
  return looks_often || std::any_of(workers_.begin(), workers_.end(), awaited) ? 50 : 1000;
}

void Supervisor::poll_once() {
  const int reader = unread_.empty() ? -1 : STDERR_FILENO;
  std::vector<pollfd> items = {{signals_, POLLIN, 0}, {errors_, POLLIN, 0}, {reader, POLLOUT, 0}};
  for (const Worker& worker : workers_)
    items.push_back({worker.status ? -1 : worker.pidfd, POLLIN, 0});
  ::poll(items.data(), items.size(), wait_ms());
  if ((items[0].revents & POLLIN) != 0) take_signal();
  if (items[1].revents != 0) copy_errors();
  if (items[2].revents != 0) pass_on();
  for (Worker& worker : workers_) look_for_joined(worker);
  if (const auto step = step_of(workers_.front())) step_ = std::max(step_.value_or(0), *step);
  std::vector<const Worker*> ended;  // all of them are known before one is handled
  for (Worker& worker : workers_)
    if (reap(worker)) ended.push_back(&worker);
  for (const Worker* worker : ended) heed_end(*worker);
  end_stopped();
  if (!kill_at_) end_absent(Clock::now() - last_joined_ > options_.join_timeout);
  if (kill_at_ && Clock::now() > *kill_at_) signal_all(SIGKILL);
}

bool Supervisor::all_ended() const {
  return std::all_of(
      workers_.begin(), workers_.end(), [](const Worker& worker) { return worker.status; });
}

int Supervisor::pause(std::chrono::milliseconds time) {
  const auto end = Clock::now() + time;
  pollfd signals{signals_, POLLIN, 0};
  while (received_ == 0 && Clock::now() < end) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
    if (::poll(&signals, 1, static_cast<int>(std::max<std::int64_t>(left, 0))) > 0) take_signal();
  }
  return code_of_signal();
}

JobEnd Supervisor::wait() {
  logs_.set_aside_others();
  while (!all_ended()) poll_once();
  read_rest();
  if (!workers_.empty()) note_of_first("rank 0 " + end_of(*workers_.front().status) + "\n");
  // Of a job that went well these are lines of progress, which may be lost.
  const auto well = [](const Worker& worker) { return weight_of(*worker.status) == 0; };
  if (!std::all_of(workers_.begin(), workers_.end(), well)) std::cerr << unread_ << std::flush;
  return received_ == 0 ? end_of_job() : JobEnd{.code = code_of_signal(), .is_asked = true};
}

}  // namespace millrace::cli
