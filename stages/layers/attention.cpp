// Causal attention of several heads, with memory linear in the sequence.
#include <cmath>
#include <cstdint>
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
  using Settings = AttentionSettings;

  /// Throws InvalidArgument when kv_heads do not divide heads, heads + 2 kv_heads do not divide the
  /// columns, a head to be turned has an odd number of columns, or the dtype is neither f32 nor
  /// f64.
  explicit CausalAttention(const Settings& settings) : settings_(settings) {
    const std::string who = "layers." + std::to_string(settings.layer) + ": attention";
    require_float(settings.dtype, who);
    require(
        settings.heads >= 1 && settings.kv_heads >= 1 && settings.heads % settings.kv_heads == 0,
        who + ": heads must be at least 1 and a multiple of the key and value heads, got " +
            std::to_string(settings.heads) + " and " + std::to_string(settings.kv_heads));
    const std::int64_t slots = settings.heads + 2 * settings.kv_heads;
    require(settings.columns >= slots && settings.columns % slots == 0, [&] {
      return who + ": rows must hold queries of " + std::to_string(settings.heads) +
             " heads, and keys and values of " + std::to_string(settings.kv_heads) +
             ", so a multiple of " + std::to_string(slots) + " numbers, got " +
             std::to_string(settings.columns);
    });
    require(settings.rotary_base >= 0 && std::isfinite(settings.rotary_base),
            who + ": rotary must be 0 or a base above it");
    require(settings.rotary_base == 0 || head_columns() % 2 == 0, [&] {
      return who + ": a head that is turned has an even number of columns, got " +
             std::to_string(head_columns());
    });
  }

  [[nodiscard]] std::vector<TensorType> infer(std::span<const TensorType> inputs) const override {
    if (inputs.size() != 1 || inputs[0].dtype != settings_.dtype || inputs[0].dims.size() != 3 ||
        inputs[0].columns() != settings_.columns)
      refuse_inputs(*this,
                    name_of(settings_.dtype) + std::string(" [samples, positions, ") +
                        std::to_string(settings_.columns) + "]",
                    inputs);
    const Dims& dims = inputs[0].dims;
    return {{settings_.dtype, {dims[0], dims[1], settings_.heads * head_columns()}}};
  }
  TensorList forward(const PassContext& context, TensorList inputs, Stash& stash) override {
    Tensor input = only(*this, "input", std::move(inputs));
    check("input", input, settings_.columns);
    const Dims dims = input.dims();
    Tensor output =
        context.make(settings_.dtype, {dims[0], dims[1], settings_.heads * head_columns()});
    const Emptied emptied{slices_};
    collect(context, stash, {std::move(input), nullptr, context.first_position});
    with_precision(settings_.dtype, [&]<class T>(T) {
      T* y = values<T>(output);
      for_groups<T>(
          context, settings_, slices_, [&](auto& heads, std::int64_t first, std::int64_t last) {
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
    check("output gradient", gradient, settings_.heads * head_columns());
    TensorList gradients;
    if (wanted) {
      const bool sliced = context.slices > 1;
      const Emptied emptied{slices_};
      collect(context,
              stash,
              {sliced ? stash.read_shared(context, kRows) : stash.read(context, 0),
               sliced ? &stash.shared(kSums) : nullptr,
               context.first_position});
      Tensor input_gradient = context.make(settings_.dtype, slices_.back().x.dims());
      with_precision(settings_.dtype, [&]<class T>(T) {
        const T* dy = values<T>(gradient);
        T* dx = values<T>(input_gradient);
        for_groups<T>(
            context, settings_, slices_, [&](auto& heads, std::int64_t first, std::int64_t last) {
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
    const std::size_t rows =
        size_of(kept_dtype(settings_.dtype)) * static_cast<std::size_t>(dims.elements());
    if (slices() == 1) return {.after_forward = rows};
    const std::size_t sums =
        size_of(settings_.dtype) * static_cast<std::size_t>(dims[0] * dims[1] * sum_columns());
    return {.after_forward = rows + sums, .shared = rows + sums};
  }
  [[nodiscard]] double operations(std::span<const TensorType> inputs) const override {
    const Dims& dims = inputs[0].dims;
    return 2.0 * static_cast<double>(dims[0] * settings_.heads * head_columns()) *
           static_cast<double>(dims[1] * (dims[1] + 1));
  }
  [[nodiscard]] std::string describe() const override {
    return "layers." + std::to_string(settings_.layer) + ": attention of " +
           std::to_string(settings_.heads) + " heads of " + std::to_string(head_columns()) +
           (settings_.kv_heads == settings_.heads
                ? ""
                : ", " + std::to_string(settings_.kv_heads) + " of keys and values");
  }

 private:
  [[nodiscard]] std::int64_t head_columns() const {
    return settings_.columns / (settings_.heads + 2 * settings_.kv_heads);
  }
  [[nodiscard]] std::int64_t sum_columns() const { return 2 * settings_.kv_heads * head_columns(); }
  [[nodiscard]] Tensor sums_for(const PassContext& context, const Dims& dims) const {
    Tensor sums = context.make(settings_.dtype, {dims[0], dims[1], sum_columns()});
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
  void check(const char* what, const Tensor& tensor, std::int64_t columns) const {
    const bool fits = tensor && tensor.dtype() == settings_.dtype && tensor.dims().size() == 3 &&
                      tensor.dims()[2] == columns;
    check_tensor(*this, what, tensor, fits, [&] {
      return name_of(settings_.dtype) + std::string(" [samples, positions, ") +
             std::to_string(columns) + "]";
    });
  }

  Settings settings_;
  std::vector<SliceRows> slices_;  // of the current pass, in order; empty between passes
};

}  // namespace

LayerKind attention_kind() {
  return {"attention",
          {"heads", "kv_heads", "rotary"},
          [](const LayerSettings& settings,
             std::span<const TensorType> inputs,
             const LayerPlace& place) {
            const std::int64_t heads = settings.integer("heads");
            return std::make_unique<CausalAttention>(
                CausalAttention::Settings{.columns = inputs[0].columns(),
                                          .heads = heads,
                                          .kv_heads = settings.integer("kv_heads", heads),
                                          .rotary_base = settings.number("rotary", 0),
                                          .dtype = place.dtype,
                                          .layer = place.number});
          }};
}

}  // namespace millrace
