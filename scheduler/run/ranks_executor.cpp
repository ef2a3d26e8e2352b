// A thread per rank over in-process mailboxes: the same code that runs in worker processes, and
// what ThreadSanitizer can prove.
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "millrace/scheduler/plan/stage_graph.hpp"
#include "millrace/transport/in_process.hpp"
#include "run/executors.hpp"
#include "run/rank_runner.hpp"

namespace millrace::run {

namespace {

/// No channel ever holds more than what a run in which nothing waits for room could pile up: all
/// messages of a step. A deeper one means that messages are sent twice.
std::vector<ChannelDepth> depths_of(const Program& program) {
  std::vector<ChannelDepth> depths;
  const auto count = [&](Rank source, Rank destination, Direction direction) {
    for (ChannelDepth& channel : depths)
      if (channel.source == source && channel.destination == destination &&
          channel.direction == direction) {
        ++channel.depth;
        return;
      }
    depths.push_back({source, destination, direction, 1});
  };
  const StageGraph graph(program.shape);
  for (const auto& list : program.ranks)
    for (const Action& action : list) {
      if (!is_send(action.op)) continue;
      const Message message = message_of(program.shape, graph, action, 0);
      count(message.source, message.destination, message.direction);
    }
  return depths;
}

/// The failure that came first; that another rank's failure ended a wait is not one of its own.
/// Thread-safety: `keep` from any thread; the rest when all threads are done.
class StepFailure {
 public:
  void keep(std::exception_ptr failure, bool consequence) {
    const std::lock_guard lock(mutex_);
    auto& place = consequence ? consequence_ : cause_;
    if (place == nullptr) place = std::move(failure);
  }

  [[nodiscard]] std::exception_ptr get() const { return cause_ ? cause_ : consequence_; }

 private:
  std::mutex mutex_;  // guards both
  std::exception_ptr cause_;
  std::exception_ptr consequence_;
};

/// Calls a function once on every thread and waits for all of them.
/// Thread-safety: externally synchronised.
class RankThreads {
 public:
  explicit RankThreads(int ranks);
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;
  /// Stops and joins the threads.
  ~RankThreads();

  /// Runs work(r) on the thread of every rank r; returns when all have returned. All that the
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

class RanksExecutor final : public ClockedExecutor {
 public:
  RanksExecutor(Program program,
                std::span<const HostedStage> stages,
                const ExecutorOptions& options)
      : ClockedExecutor(std::move(program), options.record_timeline, [](Rank) { return true; }),
        stages_(stages.begin(), stages.end()),
        options_(options),
        parts_(static_cast<std::size_t>(program_.shape.ranks)),
        threads_(program_.shape.ranks) {
    connect();
  }

  StepResult run(StepData& data, const StepSettings& settings) override {
    StepFailure failure;
    clock_.begin();
    threads_.run([&](Rank rank) noexcept {
      try {
        parts_[rank.index()] = runners_[rank.index()]->run(data, settings, clock_);
      } catch (const Cancelled&) {
        failure.keep(std::current_exception(), true);
      } catch (...) {
        failure.keep(std::current_exception(), false);
      }
    });
    if (failure.get() != nullptr) {
      connect();  // cancelled mailboxes cannot be used again
      std::rethrow_exception(failure.get());
    }
    return merge();
  }

  void for_each_rank(const std::function<void(Rank)>& body) override {
    RankWork work(body, program_.shape.ranks);
    threads_.run([&](Rank rank) { work.run(rank); });
    work.rethrow();
  }

 private:
  /// Fresh mailboxes for the runners.
  void connect() {
    InProcessHub hub(program_.shape.ranks, depths_of(program_));
    std::vector<std::unique_ptr<Endpoint>> fresh;
    for (int i = 0; i < program_.shape.ranks; ++i) {
      fresh.push_back(hub.endpoint(Rank{i}));
      if (runners_.size() < fresh.size())
        runners_.push_back(
            std::make_unique<RankRunner>(program_, stages_, GridPosition(*fresh.back()), options_));
      else
        runners_[fresh.size() - 1]->use(*fresh.back());
    }
    endpoints_ = std::move(fresh);
  }

  /// Every rank knows the losses and outputs of the last stages it has, and its own peak.
  StepResult merge() {
    StepResult whole = std::move(parts_.front());
    for (std::size_t i = 1; i < parts_.size(); ++i) {
      for (std::size_t unit = 0; unit < whole.unit_losses.size(); ++unit)
        whole.unit_losses[unit] += parts_[i].unit_losses[unit];
      for (std::size_t sink = 0; sink < whole.other_losses.size(); ++sink)
        for (std::size_t unit = 0; unit < whole.unit_losses.size(); ++unit)
          whole.other_losses[sink][unit] += parts_[i].other_losses[sink][unit];
      for (std::size_t unit = 0; unit < whole.outputs.size(); ++unit)
        if (!parts_[i].outputs[unit].empty())
          whole.outputs[unit] = std::move(parts_[i].outputs[unit]);
      whole.peak_stash_bytes[i] = parts_[i].peak_stash_bytes[i];
      if (!whole.peak_sum_bytes.empty()) whole.peak_sum_bytes[i] = parts_[i].peak_sum_bytes[i];
      whole.samples += parts_[i].samples;
    }
    whole.loss = {};
    for (const LossSum& loss : whole.unit_losses) whole.loss += loss;
    return whole;
  }

  const std::vector<HostedStage> stages_;
  const ExecutorOptions options_;
  std::vector<std::unique_ptr<Endpoint>> endpoints_;  // by rank
  std::vector<std::unique_ptr<RankRunner>> runners_;  // by rank
  std::vector<StepResult> parts_;                     // by rank
  RankThreads threads_;                               // last: joined before what they use goes
};

}  // namespace

std::unique_ptr<Executor> make_ranks(Program program,
                                     std::span<const HostedStage> stages,
                                     const ExecutorOptions& options) {
  return std::make_unique<RanksExecutor>(std::move(program), stages, options);
}

}  // namespace millrace::run
