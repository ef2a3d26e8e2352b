// A ring of mini-batches between gathering workers and the training loop. Tickets number the
// mini-batches from the first; ticket t lives in slot t mod slots, so the order is fixed however
// the workers are scheduled.
#include "millrace/training/loader.hpp"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <numeric>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "core/names.hpp"
#include "millrace/core/error.hpp"

namespace millrace {
namespace {

constexpr Names<LastBatch, 2> kLastBatch = {
    "last-batch policy", {{{"update", LastBatch::Update}, {"drop", LastBatch::Drop}}}};

std::int64_t count_batches(std::int64_t samples, const LoaderOptions& options) {
  require(options.batch_size >= 1,
          "the mini-batch must have at least 1 sample, got " + std::to_string(options.batch_size));
  require(samples >= 1, "the data set must have at least 1 sample, got 0");
  if (options.last_batch == LastBatch::Update)
    return (samples + options.batch_size - 1) / options.batch_size;
  require(samples >= options.batch_size,
          "dropping the last, incomplete mini-batch leaves none: mini-batch " +
              std::to_string(options.batch_size) + ", samples " + std::to_string(samples));
  return samples / options.batch_size;
}

void check(const LoaderOptions& options) {
  require(options.micro_batches >= 1,
          "the number of micro-batches must be at least 1, got " +
              std::to_string(options.micro_batches));
  require(options.workers >= 1,
          "the loader needs at least 1 worker, got " + std::to_string(options.workers));
  require(options.ahead >= 1,
          "the loader keeps at least 1 mini-batch ahead, got " + std::to_string(options.ahead));
}

}  // namespace

std::string_view name_of(LastBatch policy) {
  return kLastBatch.of(policy);
}

LastBatch last_batch(std::string_view name) {
  return kLastBatch.value(name);
}

struct Loader::State {
  State(const Dataset& dataset, const LoaderOptions& loader_options, std::int64_t first_ticket)
      : data(dataset),
        options(loader_options),
        batches(count_batches(dataset.epoch_size(), loader_options)),
        next_ticket(first_ticket),
        current(first_ticket) {
    check(options);
    slots.resize(static_cast<std::size_t>(options.ahead) + 1);
    for (int i = 0; i < options.workers; ++i)
      workers.emplace_back([this](const std::stop_token& stop) { work(stop); });
  }

  struct Slot {
    Batch batch;
    std::int64_t ready = -1;  // ticket that lies here, finished
  };

  Slot& slot(std::int64_t ticket) { return slots[static_cast<std::size_t>(ticket) % slots.size()]; }

  /// Of the mini-batch that the loop will get next.
  [[nodiscard]] std::int64_t upcoming() const { return current + (in_use ? 1 : 0); }

  /// A ticket may be gathered when the loop has left the batch that used its slot before.
  [[nodiscard]] bool has_room() const {
    return next_ticket < current + static_cast<std::int64_t>(slots.size());
  }

  void work(const std::stop_token& stop) {
    std::vector<std::int32_t> order;
    std::int64_t order_epoch = -1;
    while (true) {
      std::int64_t ticket = 0;
      {
        std::unique_lock lock(mutex);
        if (!changed.wait(lock, stop, [this] { return has_room() || failure; }) || failure) return;
        ticket = next_ticket++;
      }
      try {
        gather(ticket, order, order_epoch);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        changed.notify_all();
        return;
      }
      const std::lock_guard lock(mutex);
      slot(ticket).ready = ticket;
      changed.notify_all();
    }
  }

  void gather(std::int64_t ticket, std::vector<std::int32_t>& order, std::int64_t& order_epoch) {
    const std::int64_t epoch = ticket / batches;
    const std::int64_t number = ticket % batches;
    const std::int64_t first = number * options.batch_size;
    const std::int64_t count = std::min(options.batch_size, data.epoch_size() - first);
    Batch& batch = slot(ticket).batch;
    batch.epoch = epoch;
    batch.number = number;
    if (data.overlaps() && options.shuffle) {
      const auto drawn =
          drawn_windows(data, count, options.seed, static_cast<std::uint64_t>(ticket));
      return batch.fill(data, drawn, options.micro_batches, options.slices);
    }
    if (epoch != order_epoch) {
      order = order_of(epoch);
      order_epoch = epoch;
    }
    batch.fill(
        data,
        std::span(order).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)),
        options.micro_batches,
        options.slices);
  }

  [[nodiscard]] std::vector<std::int32_t> order_of(std::int64_t epoch) const {
    if (options.shuffle)
      return shuffled_order(data.size(), options.seed, static_cast<std::uint64_t>(epoch));
    std::vector<std::int32_t> order(static_cast<std::size_t>(data.size()));
    std::iota(order.begin(), order.end(), 0);
    return order;
  }

  const Dataset& data;
  const LoaderOptions options;
  const std::int64_t batches;

  std::mutex mutex;  // guards the tickets, `ready` of the slots, and failure
  std::condition_variable_any changed;
  std::int64_t next_ticket = 0;  // the next to be gathered
  std::int64_t current = 0;      // the one the loop uses, or will use next
  bool in_use = false;           // the loop holds `current`
  std::exception_ptr failure;
  // A slot's batch belongs to the worker between taking the ticket and setting `ready`, and to the
  // loop until `current` moves past it; the mutex publishes both hand-overs.
  std::vector<Slot> slots;
  std::vector<std::jthread> workers;  // last: joined before anything they use goes away
};

Loader::Loader(const Dataset& data, const LoaderOptions& options)
    : state_(std::make_unique<State>(data, options, 0)) {}

Loader::~Loader() = default;

std::int64_t Loader::batches_per_epoch() const {
  return state_->batches;
}

DataPosition Loader::position() const {
  const std::lock_guard lock(state_->mutex);
  return {state_->upcoming() / state_->batches, state_->upcoming() % state_->batches};
}

void Loader::seek(const DataPosition& position) {
  const std::int64_t batches = state_->batches;
  require(position.epoch >= 0,
          "the epoch to begin with is at least 0, got " + std::to_string(position.epoch));
  require(position.batch >= 0 && position.batch < batches,
          "the mini-batch of an epoch to begin with lies in 0.." + std::to_string(batches - 1) +
              ", got " + std::to_string(position.batch));
  state_ = std::make_unique<State>(
      state_->data, state_->options, position.epoch * batches + position.batch);
}

Batch& Loader::next() {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  if (state.in_use) {
    ++state.current;
    state.changed.notify_all();
  }
  state.in_use = true;
  // No deadline of its own: a worker only copies memory, and a failure wakes this wait.
  state.changed.wait(
      lock, [&] { return state.slot(state.current).ready == state.current || state.failure; });
  if (state.slot(state.current).ready != state.current) std::rethrow_exception(state.failure);
  return state.slot(state.current).batch;
}

}  // namespace millrace
