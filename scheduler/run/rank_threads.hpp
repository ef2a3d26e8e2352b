// The persistent threads of the ranks executor: one per rank, waiting for the next piece of work.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "millrace/core/ids.hpp"

namespace millrace::run {

/// Calls a function once on every thread and waits for all of them.
/// Thread-safety: externally synchronised.
class RankThreads {
 public:
  explicit RankThreads(int ranks);
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;
  /// Stops and joins the threads.
  ~RankThreads();

  /// Runs work(r) on the thread of every rank r; returns when all have returned. Whatever the
  /// caller did before is visible to the work, and its effects to the caller afterwards. `work`
  /// must not throw.
  void run(const std::function<void(Rank)>& work);

 private:
  void serve(const std::stop_token& stop, Rank rank);

  std::mutex mutex_;  // guards what follows; taken alone
  std::condition_variable_any changed_;
  const std::function<void(Rank)>* work_ = nullptr;
  std::uint64_t round_ = 0;
  int working_ = 0;
  std::vector<std::jthread> threads_;  // last: stopped and joined before the rest goes
};

}  // namespace millrace::run
