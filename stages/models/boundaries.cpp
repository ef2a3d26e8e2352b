// Cuts of a model where it says that little crosses, else of its layers one by one.
#include <numeric>

#include "millrace/stages/models.hpp"
#include "millrace/stages/partition.hpp"

namespace millrace {
namespace {

/// First layers of the pieces that a cut leaves whole, and the number of layers behind them: from
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

}  // namespace millrace
