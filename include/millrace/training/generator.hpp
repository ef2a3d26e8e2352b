// Text out of a trained model: one token after the other, through the stages of a pipeline.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "millrace/stages/models.hpp"

namespace millrace {

/// How tokens are drawn.
struct Sampling {
  std::int64_t tokens = 200;  ///< that each sample gets; at least 1
  int samples = 1;            ///< continuations of one prompt, each with draws of its own
  /// Token j is drawn with probability e^(z_j / T) / sum e^(z / T); 0: the first largest z_j.
  double temperature = 1;
  std::uint64_t seed = 1;
  /// Only tokens below this are drawn; 0: all that the model knows.
  std::int64_t words = 0;
};

/// Continues sequences by a model whose outputs are scores for the next token.
///
/// The samples are the micro-batches of a forward-only program, the prompt its first slice and
/// every token that follows a slice of its own: what layers share with later slices, keys and
/// values, is kept, so that a token costs one position. Several samples fill the stages at once.
/// Where a sequence reaches the model's context it is begun again with its last half. The tokens
/// are a pure function of the weights, the prompt and the settings: of no cut and no thread.
/// Thread-safety: externally synchronised.
class Generator {
 public:
  /// A parameter's value by its global name, f32.
  using Weights = std::function<Tensor(const std::string&)>;

  /// The model in `stages` stages, a thread each. Throws InvalidArgument for a model without
  /// sequences, one that cannot be cut into so many stages, and weights of another shape.
  Generator(const ModelSpec& model, int stages, const Weights& weights);
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;
  ~Generator();

  /// The new tokens of each sample. Throws InvalidArgument for an empty prompt, tokens that the
  /// model does not know and settings out of range.
  [[nodiscard]] std::vector<std::vector<std::int32_t>> generate(
      std::span<const std::int32_t> prompt, const Sampling& sampling);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace millrace
