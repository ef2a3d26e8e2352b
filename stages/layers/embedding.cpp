// Rows of a table by number: how token ids become vectors.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <fmt/format.h>
#include <string>
#include <utility>
#include <vector>

#include "millrace/stages/layer.hpp"
#include "stages/kernels/precision.hpp"
#include "stages/layers/check.hpp"
#include "stages/layers/kinds.hpp"
#include "stages/layers/parameters.hpp"

namespace millrace {
namespace {

/// The extents with one more at the end.
Dims with_last(const Dims& dims, std::int64_t columns) {
  require(dims.size() < Dims::kMax, "ids have too many extents to be given another one");
  std::array<std::int64_t, Dims::kMax> extents{};
  *std::ranges::copy(dims, extents.begin()).out = columns;
  return Dims(std::span<const std::int64_t>(extents.data(), dims.size() + 1));
}

/// y[..., :] = W[x[...], :] with x i32 ids in [0, rows), W [rows, columns], y [..., columns].
///
/// F keeps x; I keeps dy too, and returns no gradient: ids have none; W: dW[x[i], :] += dy[i,
/// :] in the order of i. Cost: one row copied or added per id. Thread-safety: externally
/// synchronised.
class Embedding final : public Layer {
 public:
  /// Parameter "layers.N.weight", without memory until `initialize`. Throws InvalidArgument when
  /// rows or columns < 1 or the dtype is neither f32 nor f64.
  Embedding(const LayerSettings& settings, std::span<const TensorType>, const LayerPlace& place)
      : Layer(place),
        rows_(settings.integer("rows")),
        columns_(settings.integer("columns")),
        weight_(parameter_of(number(), "weight", true)) {
    require_float(dtype(), describe());
    require(rows_ >= 1 && columns_ >= 1,
            describe() + ": a table needs at least 1 row and 1 column");
  }

  [[nodiscard]] std::vector<TensorType> infer(std::span<const TensorType> inputs) const override {
    if (inputs.size() != 1 || inputs[0].dtype != DType::I32 || inputs[0].dims.size() < 1 ||
        inputs[0].dims.size() >= Dims::kMax)
      refuse_inputs(*this, "i32 ids", inputs);
    return {{dtype(), with_last(inputs[0].dims, columns_)}};
  }
  TensorList forward(const PassContext& context, TensorList inputs, Stash& stash) override {
    Tensor ids = only(*this, "input", std::move(inputs));
    check_tensor(*this, "input", ids, ids && ids.dtype() == DType::I32, [] {
      return std::string("i32 ids");
    });
    Tensor output = context.make(dtype(), with_last(ids.dims(), columns_));
    with_precision(dtype(), [&]<class T>(T) {
      const T* table = values<T>(std::as_const(weight_.value));
      T* to = values<T>(output);
      for (const std::int32_t id : std::as_const(ids).as<std::int32_t>()) {
        if (id < 0 || id >= rows_)
          throw InvalidArgument(describe() + ": id " + std::to_string(id) + " is outside 0.." +
                                std::to_string(rows_ - 1));
        to = std::copy_n(table + id * columns_, columns_, to);
      }
    });
    if (context.training) stash.keep(context, std::move(ids));
    return TensorList(std::move(output));
  }
  TensorList backward_input(const PassContext& context,
                            TensorList output_gradients,
                            Stash& stash,
                            bool wanted) override {
    Tensor gradient = only(*this, "output gradient", std::move(output_gradients));
    const std::int64_t ids = stash.read(context, 0).elements();
    const bool fits =
        gradient && gradient.dtype() == dtype() && gradient.elements() == ids * columns_;
    check_tensor(*this, "output gradient", gradient, fits, [&] {
      return std::to_string(ids) + " rows of " + std::to_string(columns_);
    });
    stash.keep(context, std::move(gradient));
    return wanted ? TensorList(Tensor()) : TensorList();
  }
  void backward_weight(const PassContext& context, Stash& stash) override {
    const Tensor ids = stash.read(context, 0);
    const Tensor gradient = stash.read(context, 1);
    with_precision(dtype(), [&]<class T>(T) {
      const T* from = values<T>(gradient);
      T* table = values<T>(weight_.gradient);
      for (const std::int32_t id : ids.as<std::int32_t>()) {
        T* row = table + id * columns_;
        for (std::int64_t j = 0; j < columns_; ++j) row[j] += from[j];
        from += columns_;
      }
    });
    stash.clear(context);
  }

  [[nodiscard]] std::vector<Parameter*> parameters() override { return {&weight_}; }
  /// Uniform in [-a, a] with a = sqrt(3 / columns): a row has an expected square length of 1.
  void initialize(std::uint64_t seed) override {
    allocate(weight_, dtype(), {rows_, columns_});
    const RandomKey key{.seed = seed, .purpose = Purpose::Initialize, .layer = number()};
    fill_uniform(weight_.value, key, std::sqrt(3.0 / static_cast<double>(columns_)));
  }
  [[nodiscard]] LayerBytes bytes(std::span<const TensorType> inputs) const override {
    const auto ids = static_cast<std::size_t>(inputs[0].dims.elements());
    const std::size_t kept = ids * size_of(DType::I32);
    return {.after_forward = kept, .after_input = kept + ids * kept_bytes(columns_)};
  }
  [[nodiscard]] std::string describe() const override {
    return fmt::format("layers.{}: embedding of {} in {}", number(), rows_, columns_);
  }

 private:
  std::int64_t rows_;
  std::int64_t columns_;
  Parameter weight_;
};

}  // namespace

LayerKind embedding_kind() {
  return kind_of<Embedding>("embedding", {"rows", "columns"});
}

}  // namespace millrace
