// Boundaries of stages: even, or balanced by seconds per layer.
#include "millrace/stages/partition.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "millrace/core/error.hpp"
#include "millrace/stages/models.hpp"

namespace millrace {
namespace {

/// First layers of the pieces that a split keeps whole, and the number of layers after them: from
/// cut point to cut point where there are enough, else layer by layer.
std::vector<int> pieces_of(const ModelSpec& model, int stages) {
  std::vector<int> firsts{0};
  if (stages <= static_cast<int>(model.cut_points.size()) + 1) {
    firsts.insert(firsts.end(), model.cut_points.begin(), model.cut_points.end());
    firsts.push_back(model.layer_count());
    return firsts;
  }
  firsts.resize(static_cast<std::size_t>(model.layer_count()) + 1);
  std::iota(firsts.begin(), firsts.end(), 0);
  return firsts;
}

/// Boundaries that count pieces, in layers.
std::vector<int> in_layers(std::vector<int> boundaries, const std::vector<int>& firsts) {
  for (int& boundary : boundaries) boundary = firsts[static_cast<std::size_t>(boundary)];
  return boundaries;
}

}  // namespace

std::vector<int> even_boundaries(const ModelSpec& model, int stages) {
  if (model.cut_points.empty()) return even_boundaries(model.layer_count(), stages);
  const std::vector<int> firsts = pieces_of(model, stages);
  return in_layers(even_boundaries(static_cast<int>(firsts.size()) - 1, stages), firsts);
}

std::vector<int> balanced_boundaries(const ModelSpec& model,
                                     std::span<const double> seconds,
                                     int stages) {
  if (model.cut_points.empty()) return balanced_boundaries(seconds, stages);
  const std::vector<int> firsts = pieces_of(model, stages);
  std::vector<double> of_pieces;
  for (std::size_t i = 0; i + 1 < firsts.size(); ++i)
    of_pieces.push_back(
        std::accumulate(seconds.begin() + firsts[i], seconds.begin() + firsts[i + 1], 0.0));
  return in_layers(balanced_boundaries(of_pieces, stages), firsts);
}

namespace {

void check_counts(int layers, int stages) {
  require(stages >= 1, "a model is cut into at least 1 stage, got " + std::to_string(stages));
  require(stages <= layers,
          "cannot cut " + std::to_string(layers) + (layers == 1 ? " layer" : " layers") + " into " +
              std::to_string(stages) + " stages: every stage needs at least one layer");
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Seconds of layers [first, last), from sums over all layers before each.
class StageSeconds {
 public:
  explicit StageSeconds(std::span<const double> seconds) : before_(seconds.size() + 1, 0.0) {
    for (std::size_t i = 0; i < seconds.size(); ++i) before_[i + 1] = before_[i] + seconds[i];
  }

  [[nodiscard]] double operator()(int first, int last) const {
    return before_[static_cast<std::size_t>(last)] - before_[static_cast<std::size_t>(first)];
  }

 private:
  std::vector<double> before_;
};

/// best(s, i): the least value of cutting layers [i, L) into s stages.
class BestTable {
 public:
  BestTable(int layers, int stages)
      : columns_(layers + 1),
        values_(static_cast<std::size_t>(stages + 1) * static_cast<std::size_t>(columns_),
                kInfinity) {
    at(0, layers) = 0;
  }

  double& at(int stages, int first) {
    return values_[static_cast<std::size_t>(stages) * static_cast<std::size_t>(columns_) +
                   static_cast<std::size_t>(first)];
  }

 private:
  int columns_;
  std::vector<double> values_;
};

/// Fills best(s, i) = min over j of combine(i, j, best(s - 1, j)).
template <class Combine>
BestTable solve(int layers, int stages, const Combine& combine) {
  BestTable best(layers, stages);
  for (int s = 1; s <= stages; ++s)
    for (int i = 0; i + s <= layers; ++i)
      for (int j = i + 1; j + s - 1 <= layers; ++j)
        best.at(s, i) = std::min(best.at(s, i), combine(i, j, best.at(s - 1, j)));
  return best;
}

}  // namespace

std::vector<int> even_boundaries(int layers, int stages) {
  check_counts(layers, stages);
  std::vector<int> boundaries;
  for (std::int64_t s = 0; s <= stages; ++s)
    boundaries.push_back(static_cast<int>(s * layers / stages));
  return boundaries;
}

void check_boundaries(std::span<const int> boundaries, int layers) {
  require(boundaries.size() >= 2, "a cut has at least the boundaries 0 and the number of layers");
  require(boundaries.front() == 0,
          "the first boundary is 0, got " + std::to_string(boundaries.front()));
  require(boundaries.back() == layers,
          "the last boundary is the number of layers, " + std::to_string(layers) + ", got " +
              std::to_string(boundaries.back()));
  for (std::size_t s = 1; s < boundaries.size(); ++s)
    require(boundaries[s] > boundaries[s - 1],
            "boundary " + std::to_string(boundaries[s]) + " follows " +
                std::to_string(boundaries[s - 1]) + ": every stage needs at least one layer");
}

std::vector<int> balanced_boundaries(std::span<const double> seconds, int stages) {
  const int layers = static_cast<int>(seconds.size());
  check_counts(layers, stages);
  for (const double time : seconds)
    require(std::isfinite(time) && time >= 0,
            "a layer's time is a finite number of seconds from 0, got " + std::to_string(time));
  const StageSeconds stage(seconds);

  const double slowest = solve(layers, stages, [&](int i, int j, double rest) {
                           return std::max(stage(i, j), rest);
                         }).at(stages, 0);
  const auto squares = [&](int i, int j, double rest) {
    return stage(i, j) > slowest ? kInfinity : stage(i, j) * stage(i, j) + rest;
  };
  BestTable best = solve(layers, stages, squares);

  std::vector<int> boundaries{0};
  for (int s = stages; s > 0; --s) {
    const int i = boundaries.back();
    int j = i + 1;
    while (squares(i, j, best.at(s - 1, j)) != best.at(s, i)) ++j;
    boundaries.push_back(j);
  }
  return boundaries;
}

}  // namespace millrace
