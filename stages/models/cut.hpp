// A model cut into stages: who uses what across the boundaries.
#pragma once

#include <span>
#include <vector>

#include "millrace/stages/models.hpp"

namespace millrace {

/// The wiring of every stage, and the edges between them.
/// Thread-safety: immutable once made.
class ModelCut {
 public:
  /// Throws as cut_edges. `model` must outlive this.
  ModelCut(const ModelSpec& model, std::span<const int> boundaries);

  [[nodiscard]] const StageWiring& wiring(int stage) const {
    return wirings_[static_cast<std::size_t>(stage)];
  }
  /// All of them, a chain's too, by (from, output, to, input).
  [[nodiscard]] const std::vector<CutEdge>& edges() const { return edges_; }
  [[nodiscard]] bool is_chain() const;
  /// What a layer is given.
  [[nodiscard]] std::vector<TensorType> input_types(int layer) const;

 private:
  [[nodiscard]] int stage_of(int layer) const;
  [[nodiscard]] const TensorType& type_of(const LayerValue& value) const;
  [[nodiscard]] StageWiring::Source source_in(int stage, const LayerValue& value) const;
  [[nodiscard]] int output_number(int stage, const LayerValue& value) const;
  void find_outputs();
  void wire(int layer);

  const ModelSpec& model_;
  std::vector<int> boundaries_;
  std::vector<std::vector<TensorType>> types_;  // by layer
  std::vector<StageWiring> wirings_;            // by stage
  std::vector<CutEdge> edges_;
};

/// What layer N takes, the default put in.
[[nodiscard]] std::vector<LayerValue> inputs_of(const ModelSpec& model, int layer);

/// The input of the loss.
[[nodiscard]] LayerValue output_of(const ModelSpec& model);

}  // namespace millrace
