// TeraPipe's dynamic program over slice lengths, one run per bound on the longest slice.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"

namespace millrace {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// latency(length, context) in steps, computed once.
class LatencyTable {
 public:
  LatencyTable(const std::function<double(int, int)>& latency, int steps, int step)
      : steps_(steps),
        table_(static_cast<std::size_t>(steps + 1) * static_cast<std::size_t>(steps + 1), kNever) {
    for (int length = 1; length <= steps; ++length)
      for (int context = 0; context + length <= steps; ++context) {
        const double value = latency(length * step, context * step);
        require(std::isfinite(value) && value >= 0,
                "the latency of " + std::to_string(length * step) + " tokens after " +
                    std::to_string(context * step) + " is " + std::to_string(value) +
                    "; it must be finite and at least 0");
        table_[at(length, context)] = value;
      }
  }

  [[nodiscard]] double operator()(int length, int context) const {
    return table_[at(length, context)];
  }

  /// All values, ascending, each once.
  [[nodiscard]] std::vector<double> bounds() const {
    std::vector<double> values;
    std::ranges::copy_if(
        table_, std::back_inserter(values), [](double value) { return value < kNever; });
    std::ranges::sort(values);
    values.erase(std::unique(values.begin(), values.end()), values.end());
    return values;
  }

 private:
  [[nodiscard]] std::size_t at(int length, int context) const {
    return static_cast<std::size_t>(length) * static_cast<std::size_t>(steps_ + 1) +
           static_cast<std::size_t>(context);
  }

  int steps_;
  std::vector<double> table_;
};

/// f and the last slice of each prefix, for one bound; empty when no cut respects the bound.
std::vector<int> cut(const LatencyTable& latency, int steps, double bound) {
  std::vector<double> total(static_cast<std::size_t>(steps) + 1, kNever);
  std::vector<int> last(total.size());
  total[0] = 0;
  for (int end = 1; end <= steps; ++end)
    for (int length = 1; length <= end; ++length) {
      const double one = latency(length, end - length);
      const double sum = total[static_cast<std::size_t>(end - length)] + one;
      if (one > bound || sum >= total[static_cast<std::size_t>(end)]) continue;
      total[static_cast<std::size_t>(end)] = sum;
      last[static_cast<std::size_t>(end)] = length;
    }
  if (total.back() == kNever) return {};

  std::vector<int> lengths;
  for (int end = steps; end > 0; end -= lengths.back())
    lengths.push_back(last[static_cast<std::size_t>(end)]);
  std::ranges::reverse(lengths);
  return lengths;
}

double pipeline_latency(const LatencyTable& latency, const std::vector<int>& lengths, int ranks) {
  double sum = 0, largest = 0;
  int context = 0;
  for (const int length : lengths) {
    const double one = latency(length, context);
    sum += one;
    largest = std::max(largest, one);
    context += length;
  }
  return sum + (ranks - 1) * largest;
}

}  // namespace

Slicing terapipe_slices(const std::function<double(int length, int context)>& latency,
                        int tokens,
                        int ranks,
                        int step) {
  require(ranks >= 1, "ranks is " + std::to_string(ranks) + "; a pipeline has at least 1 rank");
  require(tokens >= 1 && step >= 1 && tokens % step == 0,
          "tokens is " + std::to_string(tokens) + " with step " + std::to_string(step) +
              "; both are at least 1 and the step divides the tokens");

  const int steps = tokens / step;
  const LatencyTable table(latency, steps, step);
  Slicing best{.lengths = {}, .latency = kNever};
  for (const double bound : table.bounds()) {
    if ((ranks - 1) * bound >= best.latency) break;
    std::vector<int> lengths = cut(table, steps, bound);
    if (lengths.empty()) continue;
    const double total = pipeline_latency(table, lengths, ranks);
    if (total < best.latency) best = {std::move(lengths), total};
  }
  for (int& length : best.lengths) length *= step;
  return best;
}

}  // namespace millrace
