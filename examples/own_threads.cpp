// The component plan alone (target millrace::plan) with custom threads: one std::thread per rank
// runs its list, and a message is a number in a mailbox that blocks the receiver. `verify` has
// proved that this cannot deadlock, because a mailbox never blocks a sender.
#include <condition_variable>
#include <iostream>
#include <map>
#include <millrace/scheduler/plan.hpp>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

namespace {

using namespace millrace;

/// Key of a message on both sides: direction, receiving stage, micro-batch.
using Key = std::tuple<bool, int, int>;

Key key_of(const Action& action) {
  const bool forward = action.op == Op::SendForward || action.op == Op::RecvForward;
  const int step = is_send(action.op) ? (forward ? 1 : -1) : 0;
  return {forward, action.stage.value + step, action.micro_batch.value};
}

/// Delivers by key. Thread-safety: all calls from any thread.
class Mailbox {
 public:
  void put(const Key& key, long value) {
    const std::lock_guard lock(mutex_);
    messages_[key] = value;
    arrived_.notify_all();
  }

  long take(const Key& key) {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [&] { return messages_.contains(key); });
    return messages_.extract(key).mapped();
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<Key, long> messages_;
};

/// A rank with numbers for tensors: a stage adds its number, a gradient doubles on its way back.
class RankThread {
 public:
  RankThread(const Program& program, Rank rank, Mailbox& mailbox)
      : program_(&program), rank_(rank), mailbox_(&mailbox) {}

  void run() {
    for (const Action& action : program_->on(rank_)) execute(action);
  }

  std::map<int, long> weight_gradient;  ///< by stage

 private:
  void execute(const Action& action) {
    const Key key = key_of(action);
    const int stage = action.stage.value;
    const int unit = action.micro_batch.value;
    const bool last = stage == program_->shape.stages() - 1;
    switch (action.op) {
      case Op::Forward:
        value_[{true, stage + 1, unit}] = (stage == 0 ? unit : value_[{true, stage, unit}]) + stage;
        break;
      case Op::Backward:
        value_[{false, stage - 1, unit}] = 2 * (last ? 1 : value_[{false, stage, unit}]);
        weight_gradient[stage] += value_[{true, stage + 1, unit}];
        break;
      case Op::SendForward:
      case Op::SendBackward:
        mailbox_->put(key, value_[key]);
        break;
      case Op::RecvForward:
      case Op::RecvBackward:
        value_[key] = mailbox_->take(key);
        break;
      default:
        break;
    }
  }

  const Program* program_;
  Rank rank_;
  Mailbox* mailbox_;
  std::map<Key, long> value_;
};

std::string gradients_under(const std::string& schedule) {
  const Program program =
      insert_messages(generate(schedule, {.ranks = 4, .micro_batches = 12, .chunks = 2}));
  if (const auto faults = verify(program, Transport::unbounded()); !faults.empty())
    return faults.front().message;
  Mailbox mailbox;
  std::vector<RankThread> ranks;
  for (int r = 0; r < program.shape.ranks; ++r) ranks.emplace_back(program, Rank{r}, mailbox);
  {
    std::vector<std::jthread> threads;
    for (RankThread& rank : ranks) threads.emplace_back([&rank] { rank.run(); });
  }
  std::map<int, long> all;
  for (const RankThread& rank : ranks)
    all.insert(rank.weight_gradient.begin(), rank.weight_gradient.end());
  std::string text;
  for (const auto& [stage, sum] : all) text += " " + std::to_string(sum);
  return text;
}

}  // namespace

int main() {
  std::cout << "interleaved:" << gradients_under("interleaved") << '\n';
  std::cout << "bfs:        " << gradients_under("bfs") << '\n';
}
