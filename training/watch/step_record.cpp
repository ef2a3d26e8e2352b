// Sums over records.
#include "millrace/training/records.hpp"

namespace millrace {

RankTimes& RankTimes::operator+=(const RankTimes& more) {
  compute += more.compute;
  wait += more.wait;
  transfer += more.transfer;
  data += more.data;
  optimizer += more.optimizer;
  save += more.save;
  other += more.other;
  return *this;
}

Bubble& Bubble::operator+=(const Bubble& more) {
  warm_up += more.warm_up;
  drain += more.drain;
  imbalance += more.imbalance;
  dependency += more.dependency;
  transfer += more.transfer;
  delay += more.delay;
  return *this;
}

double StepRecord::bubble() const {
  const double all = makespan * static_cast<double>(ranks.size());
  double idle = 0;
  for (const RankRecord& rank : ranks) idle += rank.bubble.total();
  return all > 0 ? idle / all : 0;
}

}  // namespace millrace
