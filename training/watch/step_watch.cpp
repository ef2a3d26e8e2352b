// Every process sends its clocks and the rows of its rank; the first process merges them.
#include "millrace/training/step_watch.hpp"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include "millrace/core/error.hpp"
#include "training/watch/pass_use.hpp"

namespace millrace {
namespace {

/// Names the machine since its last start: whoever has the same has the same clock.
std::string this_machine() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

/// The rank whose row is here.
std::size_t hosted_rank(const Timeline& timeline) {
  std::size_t rank = 0;
  while (rank + 1 < timeline.ranks.size() && timeline.ranks[rank].empty()) ++rank;
  return rank;
}

bool is_recorded(const Executor& executor) {
  const auto& ranks = executor.timeline().ranks;
  return std::any_of(ranks.begin(), ranks.end(), [](const auto& row) { return !row.empty(); });
}

}  // namespace

StepWatch::StepWatch(const Executor& executor, ProcessGroup& group)
    : executor_(executor), group_(group), graph_(executor.program()) {
  require(is_recorded(executor), "records of steps need ExecutorOptions::record_timeline");
  const auto machines = group.size() == 1 ? std::vector<std::string>{""}
                                          : group.gather(this_machine(), Label::Measurement);
  for (const std::string& machine : machines)
    on_first_machine_.push_back(machine == machines.front());
  restart();
}

void StepWatch::restart() {
  since_ = std::chrono::steady_clock::now();
}

void StepWatch::add_pass() {
  if (passes_ == timelines_.size()) {
    timelines_.emplace_back();
    started_.emplace_back();
  }
  timelines_[passes_] = executor_.timeline();
  started_[passes_] = std::chrono::duration<double>(executor_.started().time_since_epoch()).count();
  ++passes_;
}

StepWatch::Account StepWatch::own_account(const StepTimes& times) {
  const auto now = std::chrono::steady_clock::now();
  Account account;
  account.place = hosted_rank(executor_.timeline());
  account.seconds = std::chrono::duration<double>(now - since_).count() - times.validation;
  since_ = now;
  account.pass = times.pass;
  account.update = times.update;
  account.data = times.data;
  account.save = times.save;
  account.optimizer = times.optimizer;
  account.started.assign(started_.begin(), started_.begin() + static_cast<std::ptrdiff_t>(passes_));
  for (std::size_t i = 0; i < passes_; ++i) account.passes.push_back(timelines_[i]);
  return account;
}

/// The clocks, then for every pass its beginning and the row of the one rank that is here.
TensorList StepWatch::packed(const Account& account) const {
  std::vector<double> numbers = {static_cast<double>(account.place),
                                 account.seconds,
                                 account.pass,
                                 account.update,
                                 account.data,
                                 account.save,
                                 account.optimizer[account.place]};
  for (std::size_t i = 0; i < account.passes.size(); ++i) {
    numbers.push_back(account.started[i]);
    for (const Interval& interval : account.passes[i].ranks[account.place]) {
      numbers.push_back(interval.start);
      numbers.push_back(interval.end);
    }
  }
  Tensor tensor(DType::F64, {static_cast<std::int64_t>(numbers.size())});
  std::copy(numbers.begin(), numbers.end(), tensor.as<double>().begin());
  return TensorList(std::move(tensor));
}

StepWatch::Account StepWatch::unpacked(const Tensor& tensor) const {
  const auto numbers = tensor.as<double>();
  std::size_t at = 0;
  const auto next = [&] {
    require(at < numbers.size(), "a rank's account of a step is cut short");
    return numbers[at++];
  };
  const Program& program = graph_.program();
  Account account;
  account.place = std::min(static_cast<std::size_t>(next()), program.ranks.size() - 1);
  for (double* number :
       {&account.seconds, &account.pass, &account.update, &account.data, &account.save})
    *number = next();
  account.optimizer.resize(program.ranks.size());
  account.optimizer[account.place] = next();
  while (at < numbers.size()) {
    account.started.push_back(next());
    Timeline& timeline = account.passes.emplace_back();
    timeline.ranks.resize(program.ranks.size());
    auto& row = timeline.ranks[account.place];
    row.resize(program.ranks[account.place].size());
    for (Interval& interval : row) {
      interval.start = next();
      interval.end = next();
    }
  }
  return account;
}

/// Of all processes, in the first one; of a group of one, its own.
std::vector<StepWatch::Account> StepWatch::gathered(Account mine) {
  std::vector<Account> accounts;
  if (group_.size() == 1) {
    accounts.push_back(std::move(mine));
    return accounts;
  }
  for (const TensorList& said : group_.gather(0, packed(mine), Label::Measurement)) {
    accounts.push_back(unpacked(said[0]));
    accounts.back().on_first_machine = on_first_machine_[accounts.size() - 1];
  }
  return accounts;
}

/// The rows of a copy's processes on one clock.
Timeline StepWatch::joined(std::span<const Account> accounts, std::size_t pass) const {
  if (group_.size() == 1) return accounts.front().passes[pass];
  double first = std::numeric_limits<double>::infinity();
  for (const Account& account : accounts)
    if (account.on_first_machine) first = std::min(first, account.started[pass]);
  Timeline timeline;
  timeline.ranks.resize(graph_.program().ranks.size());
  for (const Account& account : accounts) {
    auto& row = timeline.ranks[account.place];
    row = account.passes[pass].ranks[account.place];
    const double late = account.on_first_machine ? account.started[pass] - first : 0;
    for (Interval& interval : row) interval = {interval.start + late, interval.end + late};
  }
  return timeline;
}

/// The ranks of one copy of the pipeline.
void StepWatch::add_copy(StepRecord& record, std::span<const Account> accounts, int copy) const {
  const std::size_t ranks = graph_.program().ranks.size();
  const std::size_t before = record.ranks.size();
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const Account& account = accounts[accounts.size() == 1 ? 0 : rank];
    RankRecord& mine = record.ranks.emplace_back();
    mine.rank = Rank{static_cast<std::int32_t>(rank)};
    mine.copy = copy;
    mine.times.data = account.data;
    mine.times.save = account.save;
    mine.times.optimizer = account.optimizer[rank];
  }
  double makespan = 0;
  for (std::size_t pass = 0; pass < accounts.front().passes.size(); ++pass) {
    Timeline timeline = joined(accounts, pass);
    const PassUse use = pass_use(graph_, timeline);
    makespan += use.makespan;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      RankRecord& mine = record.ranks[before + rank];
      mine.times.compute += use.compute[rank];
      mine.times.transfer += use.transfer[rank];
      mine.bubble += use.bubble[rank];
    }
    if (copy == 0) record.timeline = std::move(timeline);
  }
  record.makespan = std::max(record.makespan, makespan);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const Account& account = accounts[accounts.size() == 1 ? 0 : rank];
    RankTimes& times = record.ranks[before + rank].times;
    times.wait = std::max(
        0.0, account.pass + account.update - times.compute - times.transfer - times.optimizer);
    times.other = std::max(0.0, account.seconds - times.total());
  }
}

std::optional<StepRecord> StepWatch::record(const StepReport& report,
                                            std::int64_t step,
                                            StepTimes& times) {
  const std::vector<Account> accounts = gathered(own_account(times));
  times = {.optimizer = std::vector<double>(times.optimizer.size(), 0.0)};
  begin_step();
  if (accounts.empty()) return std::nullopt;
  StepRecord record;
  record.step = step;
  record.report = report;
  record.seconds = accounts.front().seconds;
  const std::size_t places = accounts.size() == 1 ? 1 : graph_.program().ranks.size();
  for (std::size_t first = 0; first < accounts.size(); first += places)
    add_copy(record, std::span(accounts).subspan(first, places), static_cast<int>(first / places));
  return record;
}

}  // namespace millrace
