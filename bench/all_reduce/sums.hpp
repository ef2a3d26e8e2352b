// The job that every library gets: sums of f32 numbers over processes, in place, checked and then
// timed. The programs in this folder differ only in how they request a sum.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

namespace all_reduce {

/// What one program is asked: NAME PROCESSES BYTES..., the name as it stands in the results.
struct Job {
  std::string name;
  int processes = 0;
  std::vector<std::size_t> sizes;
};

inline Job job_of(std::span<char*> arguments) {
  if (arguments.size() < 4) {
    std::fprintf(stderr, "usage: %s NAME PROCESSES BYTES...\n", arguments[0]);
    std::exit(2);
  }
  Job job{arguments[1], std::atoi(arguments[2]), {}};
  for (char* const size : arguments.subspan(3))
    job.sizes.push_back(std::strtoull(size, nullptr, 10));
  return job;
}

/// Numbers that differ from place to place and from rank to rank, whose sum is exact in any order.
inline float number(int rank, std::size_t place) {
  return static_cast<float>((place % 1000) * 8 + static_cast<std::size_t>(rank));
}

/// Whether `sum(numbers)` adds up.
template <class Sum>
bool adds_up(int rank, int processes, std::span<float> numbers, const Sum& sum) {
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = number(rank, i);
  sum(numbers);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    float expected = 0;
    for (int each = 0; each < processes; ++each) expected += number(each, i);
    if (numbers[i] != expected) return false;
  }
  return true;
}

/// Runs the job as one of its ranks. Rank 0 prints a line for every size: name, processes, bytes
/// and the seconds of a sum, the median and the best of some short runs. The best shows what there
/// is where others leave the processors alone for so long.
template <class Sum, class Barrier>
void run(const Job& job, int rank, const Sum& sum, const Barrier& barrier) {
  constexpr std::size_t kBytesOfRun = std::size_t{8} << 20U;
  constexpr int kRuns = 21;
  for (const std::size_t bytes : job.sizes) {
    std::vector<float> memory(bytes / sizeof(float));
    const std::span<float> numbers(memory);
    if (!adds_up(rank, job.processes, numbers, sum)) {
      std::fprintf(stderr, "%s: wrong sums of %zu bytes\n", job.name.c_str(), bytes);
      std::exit(1);
    }
    std::ranges::fill(memory, 0.0F);  // stays finite
    const std::size_t sums = std::max<std::size_t>(1, kBytesOfRun / bytes);
    std::vector<double> seconds;
    for (int i = 0; i < kRuns; ++i) {
      barrier();
      const auto start = std::chrono::steady_clock::now();
      for (std::size_t each = 0; each < sums; ++each) sum(numbers);
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
      seconds.push_back(taken.count() / static_cast<double>(sums));
    }
    std::ranges::sort(seconds);
    if (rank == 0)
      std::printf("%s %d %zu %.9f %.9f\n",
                  job.name.c_str(),
                  job.processes,
                  bytes,
                  seconds[kRuns / 2],
                  seconds.front());
  }
  std::fflush(stdout);
}

}  // namespace all_reduce
