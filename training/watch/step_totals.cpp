// Sums over the records of a run, and where their time went.
#include <algorithm>
#include <array>
#include <cstdio>

#include "training/watch/record_fields.hpp"

namespace millrace {

RankTimes& RankTimes::operator+=(const RankTimes& more) {
  for (const auto& cause : kRankTimes) this->*cause.seconds += more.*cause.seconds;
  return *this;
}

Bubble& Bubble::operator+=(const Bubble& more) {
  for (const auto& cause : kBubble) this->*cause.seconds += more.*cause.seconds;
  return *this;
}

double StepRecord::bubble() const {
  const double all = makespan * static_cast<double>(ranks.size());
  double idle = 0;
  for (const RankRecord& rank : ranks) idle += rank.bubble.total();
  return all > 0 ? idle / all : 0;
}

void StepTotals::add(const StepRecord& record) {
  ++steps_;
  skipped_ += record.report.skipped ? 1 : 0;
  samples_ += record.report.samples;
  seconds_ += record.seconds;
  makespan_ += record.makespan;
  restarts_ += record.restarts;
  downtime_ += record.downtime;
  for (std::size_t i = ranks_.size(); i < record.ranks.size(); ++i)
    ranks_.push_back({record.ranks[i].rank, record.ranks[i].copy, {}, {}});
  for (std::size_t i = 0; i < ranks_.size() && i < record.ranks.size(); ++i) {
    ranks_[i].times += record.ranks[i].times;
    ranks_[i].bubble += record.ranks[i].bubble;
  }
}

std::vector<TimeShare> time_shares(const StepTotals& totals) {
  RankTimes times;
  Bubble bubble;
  for (const RankRecord& rank : totals.ranks()) {
    times += rank.times;
    bubble += rank.bubble;
  }
  const double all = times.total();
  if (all <= 0) return {};
  // What the passes' bubble explains of waiting and messages; the rest lies around the passes.
  const double explained = bubble.total();
  const double around = std::max(0.0, times.wait + times.transfer - explained);
  const std::vector<TimeShare> causes = {
      {"warm-up and drain",
       bubble.warm_up + bubble.drain,
       "more micro-batches, or a schedule with a smaller bubble"},
      {"imbalance", bubble.imbalance, "stages that take equally long, cut by their measured times"},
      {"dependency", bubble.dependency, "another schedule: millrace search finds one"},
      {"transfer", bubble.transfer, "larger micro-batches, f16 or bf16, or a faster link"},
      {"delay", bubble.delay, "a processor for every rank, or larger micro-batches"},
      {"wait", around, "fewer ranks, or more work for each in a step"},
      {"data", times.data, "data that is read faster"},
      {"optimizer", times.optimizer, "more samples per update"},
      {"save", times.save, "checkpoints less often"},
      {"other", times.other, "less in callbacks"}};
  std::vector<TimeShare> shares = causes;
  std::stable_sort(shares.begin(), shares.end(), [](const TimeShare& a, const TimeShare& b) {
    return a.share > b.share;
  });
  shares.insert(shares.begin(), {"compute", times.compute, "faster layers, or more ranks"});
  double sum = 0;
  for (const TimeShare& share : shares) sum += share.share;
  for (TimeShare& share : shares) share.share /= sum;
  return shares;
}

std::string bottleneck(const StepTotals& totals) {
  const std::vector<TimeShare> shares = time_shares(totals);
  if (shares.empty()) return "bottleneck: none, no step has run";
  const TimeShare& most = shares[1].share > shares[0].share ? shares[1] : shares[0];
  std::array<char, 32> percent{};
  std::snprintf(percent.data(), percent.size(), "%.1f %%", 100 * most.share);
  return "bottleneck: " + most.cause + ", " + percent.data() +
         " of the ranks' time; less of it with " + most.cure;
}

}  // namespace millrace
