// Causal attention of several heads, with memory linear in the sequence.
#include <cmath>
#include <cstdint>
#include <fmt/format.h>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "millrace/stages/layer.hpp"
#include "stages/kernels/precision.hpp"
#include "stages/layers/attention_heads.hpp"
#include "stages/layers/check.hpp"
#include "stages/layers/kinds.hpp"

namespace millrace {
namespace {

/// What a slice shares: x, and in training the sums.
constexpr std::size_t kRows = 0;
constexpr std::size_t kSums = 1;

/// Empties the list at the end of a pass, however it ends; its memory stays.
struct Emptied {
  std::vector<SliceRows>& list;
  ~Emptied() { list.clear(); }
};

/// y_t = sum over s <= t of p_ts v_s with p_t = softmax over s <= t of q_t . k_s / sqrt(d), for
/// every head: Vaswani et al., "Attention Is All You Need", arXiv 1706.03762, equation 1. x
/// [samples, positions, (heads + 2 kv_heads) d] holds the queries of all heads, then the keys, then
/// the values; y [samples, positions, heads d]. Heads share keys and values in groups of heads /
/// kv_heads consecutive ones (Ainslie et al., arXiv 2305.13245).
///
/// With `rotary_base` B > 0 queries and keys are turned by their position first: numbers i and i +
/// d/2 of a head by the angle t B^(-2i/d) (Su et al., "RoFormer", arXiv 2104.09864, equation 34, in
/// halves instead of neighbours).
///
/// F keeps x. I goes through blocks of 64 queries, makes their p again and with dp = dy v^T and ds
/// = p (dp - sum of p dp): dq = ds k / sqrt(d), dk = ds^T q / sqrt(d), dv = p^T dy. No weights.
/// Besides x a pass holds 64 rows of p, and q, k and v of one head: never a matrix of positions x
/// positions. Cost: F 4, I 10 operations for every (query, key at most 63 beyond it, number of a
/// head).
///
/// A sequence in slices: F shares x with later slices, which read its keys and values there, and
/// zeros, to which their I adds the gradients by these: 2 kv_heads d numbers a position. The bits
/// are those of the same slices in any schedule. Thread-safety: externally synchronised.
class CausalAttention final : public Layer {
 public:
  /// Throws InvalidArgument when kv_heads do not divide heads, heads + 2 kv_heads do not divide the
  /// columns, a head to be turned has an odd number of columns, or the dtype is neither f32 nor
  /// f64.
  CausalAttention(const LayerSettings& settings,
                  std::span<const TensorType> inputs,
                  const LayerPlace& place)
      : Layer(place),
        heads_{.columns = inputs[0].columns(),
               .heads = settings.integer("heads"),
               .kv_heads = settings.integer("kv_heads", settings.integer("heads")),
               .rotary_base = settings.number("rotary", 0),
               .dtype = dtype()} {
    const std::string who = "layers." + std::to_string(number()) + ": attention";
    require_float(dtype(), who);
    require(heads_.heads >= 1 && heads_.kv_heads >= 1 && heads_.heads % heads_.kv_heads == 0,
            who + ": heads must be at least 1 and a multiple of the key and value heads, got " +
                std::to_string(heads_.heads) + " and " + std::to_string(heads_.kv_heads));
    const std::int64_t slots = heads_.heads + 2 * heads_.kv_heads;
    require(heads_.columns >= slots && heads_.columns % slots == 0, [&] {
      return who + ": rows must hold queries of " + std::to_string(heads_.heads) +
             " heads, and keys and values of " + std::to_string(heads_.kv_heads) +
             ", so a multiple of " + std::to_string(slots) + " numbers, got " +
             std::to_string(heads_.columns);
    });
    require(heads_.rotary_base >= 0 && std::isfinite(heads_.rotary_base),
            who + ": rotary must be 0 or a base above it");
    require(heads_.rotary_base == 0 || head_columns() % 2 == 0, [&] {
      return who + ": a head that is turned has an even number of columns, got " +
             std::to_string(head_columns());
    });
  }

  [[nodiscard]] std::vector<TensorType> infer(std::span<const TensorType> inputs) const override {
    const Dims& dims = infer_sequences(*this, inputs, heads_.columns);
    return {{dtype(), {dims[0], dims[1], heads_.heads * head_columns()}}};
  }
  TensorList forward(const PassContext& context, TensorList inputs, Stash& stash) override {
    Tensor input = only(*this, "input", std::move(inputs));
    check_sequences(*this, "input", input, heads_.columns);
    const Dims dims = input.dims();
    Tensor output = context.make(dtype(), {dims[0], dims[1], heads_.heads * head_columns()});
    const Emptied emptied{slices_};
    collect(context, stash, {std::move(input), nullptr, context.first_position});
    with_precision(dtype(), [&]<class T>(T) {
      T* y = values<T>(output);
      for_groups<T>(
          context, heads_, slices_, [&](auto& heads, std::int64_t first, std::int64_t last) {
            heads.forward(first, last, y);
          });
    });
    keep(context, std::move(slices_.back().x), stash);
    return TensorList(std::move(output));
  }
  TensorList backward_input(const PassContext& context,
                            TensorList output_gradients,
                            Stash& stash,
                            bool wanted) override {
    const Tensor gradient = only(*this, "output gradient", std::move(output_gradients));
    check_sequences(*this, "output gradient", gradient, heads_.heads * head_columns());
    TensorList gradients;
    if (wanted) {
      const bool sliced = context.slices > 1;
      const Emptied emptied{slices_};
      collect(context,
              stash,
              {sliced ? stash.read_shared(context, kRows) : stash.read(context, 0),
               sliced ? &stash.shared(kSums) : nullptr,
               context.first_position});
      Tensor input_gradient = context.make(dtype(), slices_.back().x.dims());
      with_precision(dtype(), [&]<class T>(T) {
        const T* dy = values<T>(gradient);
        T* dx = values<T>(input_gradient);
        for_groups<T>(
            context, heads_, slices_, [&](auto& heads, std::int64_t first, std::int64_t last) {
              heads.backward(first, last, dy, dx);
            });
      });
      gradients.push_back(std::move(input_gradient));
    }
    stash.clear(context);
    return gradients;
  }
  [[nodiscard]] LayerBytes bytes(std::span<const TensorType> inputs) const override {
    const Dims& dims = inputs[0].dims;
    const std::size_t rows = kept_bytes(dims.elements());
    if (slices() == 1) return {.after_forward = rows};
    const std::size_t sums =
        size_of(dtype()) * static_cast<std::size_t>(dims[0] * dims[1] * sum_columns());
    return {.after_forward = rows + sums, .shared = rows + sums};
  }
  [[nodiscard]] double operations(std::span<const TensorType> inputs) const override {
    const Dims& dims = inputs[0].dims;
    return 2.0 * static_cast<double>(dims[0] * heads_.heads * head_columns()) *
           static_cast<double>(dims[1] * (dims[1] + 1));
  }
  [[nodiscard]] std::string describe() const override {
    const std::string text = fmt::format(
        "layers.{}: attention of {} heads of {}", number(), heads_.heads, head_columns());
    if (heads_.kv_heads == heads_.heads) return text;
    return fmt::format("{}, {} of keys and values", text, heads_.kv_heads);
  }

 private:
  [[nodiscard]] std::int64_t head_columns() const {
    return heads_.columns / (heads_.heads + 2 * heads_.kv_heads);
  }
  [[nodiscard]] std::int64_t sum_columns() const { return 2 * heads_.kv_heads * head_columns(); }
  [[nodiscard]] Tensor sums_for(const PassContext& context, const Dims& dims) const {
    Tensor sums = context.make(dtype(), {dims[0], dims[1], sum_columns()});
    sums.fill_zero();
    return sums;
  }
  void keep(const PassContext& context, Tensor input, Stash& stash) const {
    if (context.slices == 1) {
      if (context.training) stash.keep(context, std::move(input));
      return;
    }
    const Dims dims = input.dims();
    stash.share(context,
                kRows,
                is_narrow(precision()) ? narrowed(context, input, precision()) : std::move(input));
    if (context.training) stash.share(context, kSums, sums_for(context, dims));
  }
  /// The slices before the current one, then that.
  void collect(const PassContext& context, Stash& stash, SliceRows own) {
    std::int64_t first = 0;
    for (int s = 0; s < context.slice.value; ++s) {
      Stash& earlier = stash.of_slice(Slice{s});
      slices_.push_back({earlier.read_shared(context, kRows),
                         context.training ? &earlier.shared(kSums) : nullptr,
                         first});
      first += slices_.back().x.dims()[1];
    }
    slices_.push_back(std::move(own));
  }
  AttentionSettings heads_;
  std::vector<SliceRows> slices_;  // of the current pass, in order; empty between passes
};

}  // namespace

LayerKind attention_kind() {
  return kind_of<CausalAttention>("attention", {"heads", "kv_heads", "rotary"});
}

}  // namespace millrace
