// What a person sees while a plan subcommand works: nothing for the first second, then what it is
// at and for how long: one line that moves on a terminal, few lines elsewhere, all on standard
// error.
#pragma once

#include <chrono>
#include <condition_variable>
#include <iosfwd>
#include <mutex>
#include <string>
#include <thread>

namespace millrace::cli {

/// The lines without clock and thread: the caller says how long the subcommand has lasted.
/// Thread-safety: externally synchronised.
class PlanLine {
 public:
  /// `moves`: the stream is a terminal, and a line may be written over. Nothing is written before
  /// the subcommand has lasted `after` seconds.
  PlanLine(std::ostream& stream, bool moves, double after);

  /// Writes "millrace: SUBCOMMAND, 12 s: WHAT" where it is time to: on a terminal four times a
  /// second, elsewhere when twice as long has passed as at the line before.
  void show(double seconds, const std::string& subcommand, const std::string& what);

  /// Takes the line that moves away: what follows has the terminal to itself.
  void clear();

 private:
  void draw(const std::string& text);

  std::ostream& stream_;
  bool moves_;
  double due_;             // when the next line is
  std::size_t width_ = 0;  // of the line that will be written over
};

/// Keeps a line on standard error from its making to its end. Seconds of silence: 1, or what the
/// environment's MILLRACE_PROGRESS says ("never": no lines).
/// Thread-safety: internally synchronised, any thread.
class PlanProgress {
 public:
  explicit PlanProgress(std::string subcommand);
  ~PlanProgress() { end(); }
  PlanProgress(const PlanProgress&) = delete;
  PlanProgress& operator=(const PlanProgress&) = delete;

  /// What the subcommand is at from now on: "generating v-zb".
  void at(std::string what);

  /// No line any more; the subcommand prints its result. Nothing the second time.
  void end();

 private:
  [[nodiscard]] double seconds() const;
  void keep_drawing(const std::stop_token& stop);

  std::string subcommand_;
  double after_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::mutex mutex_;  // guards line_ and what_
  std::condition_variable_any changed_;
  PlanLine line_;
  std::string what_;
  std::jthread drawer_;  // last: it uses the others
};

}  // namespace millrace::cli
