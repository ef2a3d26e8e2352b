// A round of work: published under the mutex, counted down under the mutex.
#include "run/rank_threads.hpp"

namespace millrace::run {

RankThreads::RankThreads(int ranks) {
  threads_.reserve(static_cast<std::size_t>(ranks));
  for (int i = 0; i < ranks; ++i)
    threads_.emplace_back([this, i](const std::stop_token& stop) { serve(stop, Rank{i}); });
}

RankThreads::~RankThreads() {
  for (std::jthread& thread : threads_) thread.request_stop();
}

void RankThreads::run(const std::function<void(Rank)>& work) {
  std::unique_lock lock(mutex_);
  work_ = &work;
  ++round_;
  working_ = static_cast<int>(threads_.size());
  changed_.notify_all();
  // Ends when the work ends: every wait inside it has a deadline of its own.
  changed_.wait(lock, [&] { return working_ == 0; });
  work_ = nullptr;
}

void RankThreads::serve(const std::stop_token& stop, Rank rank) {
  std::uint64_t served = 0;
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [&] { return round_ != served; })) {
    served = round_;
    const std::function<void(Rank)>& work = *work_;
    lock.unlock();
    work(rank);
    lock.lock();
    if (--working_ == 0) changed_.notify_all();
  }
}

}  // namespace millrace::run
