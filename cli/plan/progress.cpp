// Progress of the plan subcommands; see progress.hpp.
#include "cli/plan/progress.hpp"

#include <algorithm>
#include <iostream>
#include <limits>
#include <unistd.h>
#include <utility>

#include "cli/numbers.hpp"
#include "millrace/transport/launch.hpp"

namespace millrace::cli {

namespace {

constexpr double kSilent = 1;  // seconds
constexpr double kBetweenMoves = 0.25;
constexpr double kNever = std::numeric_limits<double>::infinity();

double silent_seconds() {
  const Variables variables = own_environment();
  const auto found = variables.find("MILLRACE_PROGRESS");
  if (found == variables.end()) return kSilent;
  return found->second == "never" ? kNever : decimal("MILLRACE_PROGRESS", found->second, 0);
}

}  // namespace

PlanLine::PlanLine(std::ostream& stream, bool moves, double after)
    : stream_(stream), moves_(moves), due_(after) {}

void PlanLine::show(double seconds, const std::string& subcommand, const std::string& what) {
  if (seconds < due_) return;
  due_ = moves_ ? seconds + kBetweenMoves : std::max(kSilent, 2 * seconds);
  draw("millrace: " + subcommand + ", " + std::to_string(static_cast<long>(seconds)) +
       " s: " + what);
}

void PlanLine::draw(const std::string& text) {
  if (!moves_) {
    stream_ << text << std::endl;
    return;
  }
  std::string line = text;
  if (line.size() < width_) line.append(width_ - line.size(), ' ');
  width_ = text.size();
  stream_ << '\r' << line << std::flush;
}

void PlanLine::clear() {
  if (width_ > 0) stream_ << '\r' << std::string(width_, ' ') << '\r' << std::flush;
  width_ = 0;
}

PlanProgress::PlanProgress(std::string subcommand)
    : subcommand_(std::move(subcommand)),
      after_(silent_seconds()),
      line_(std::cerr, ::isatty(STDERR_FILENO) == 1, after_) {
  if (after_ != kNever)
    drawer_ = std::jthread([this](std::stop_token stop) { keep_drawing(stop); });
}

double PlanProgress::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

void PlanProgress::at(std::string what) {
  const std::lock_guard lock(mutex_);
  what_ = std::move(what);
  line_.show(seconds(), subcommand_, what_);
}

void PlanProgress::end() {
  if (!drawer_.joinable()) return;
  drawer_.request_stop();
  drawer_.join();
  const std::lock_guard lock(mutex_);
  line_.clear();
}

void PlanProgress::keep_drawing(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  const auto never = [] { return false; };
  while (!stop.stop_requested()) {
    changed_.wait_for(lock, stop, std::chrono::duration<double>(kBetweenMoves), never);
    if (!stop.stop_requested() && !what_.empty()) line_.show(seconds(), subcommand_, what_);
  }
}

}  // namespace millrace::cli
