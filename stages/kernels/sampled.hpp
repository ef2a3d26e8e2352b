// How long one of many equal runs takes, apart from what the first one has to set up.
#pragma once

#include <cstddef>
#include <vector>

namespace millrace {

/// Seconds of each of several calls of `run`: the first call is not timed (it plans, makes code and
/// fills caches), then calls are, until `budget` seconds are over, but at least three. `now` gives
/// seconds.
template <class Run, class Now>
std::vector<double> sampled(Run&& run, Now&& now, double budget) {
  constexpr std::size_t kLeast = 3;
  run();
  std::vector<double> seconds;
  const double end = now() + budget;
  for (double began = now(); seconds.size() < kLeast || began < end;) {
    run();
    const double ended = now();
    seconds.push_back(ended - began);
    began = ended;
  }
  return seconds;
}

}  // namespace millrace
