// Causal attention of several heads, with memory linear in the sequence.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/stages/layer.hpp"

namespace millrace {

namespace detail {

/// Rows x of one slice, and where the gradients of its keys and values add up: [samples, positions,
/// 2 kv_heads d]; null where nothing of a later slice has come, or will.
struct SliceRows {
  Tensor x;
  Tensor* sums = nullptr;
  std::int64_t first = 0;  // position
};

}  // namespace detail

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
  struct Settings {
    std::int64_t columns = 0;  ///< of x
    std::int64_t heads = 1;
    std::int64_t kv_heads = 1;
    double rotary_base = 0;  ///< 0: not turned
    DType dtype = DType::F32;
    std::uint32_t layer = 0;  ///< global number, for messages
  };

  /// Throws InvalidArgument when kv_heads do not divide heads, heads + 2 kv_heads do not divide the
  /// columns, a head to be turned has an odd number of columns, or the dtype is neither f32 nor
  /// f64.
  explicit CausalAttention(const Settings& settings);

  [[nodiscard]] std::vector<TensorType> infer(std::span<const TensorType> inputs) const override;
  TensorList forward(const PassContext& context, TensorList inputs, Stash& stash) override;
  TensorList backward_input(const PassContext& context,
                            TensorList output_gradients,
                            Stash& stash,
                            bool wanted) override;
  [[nodiscard]] LayerBytes bytes(std::span<const TensorType> inputs) const override;
  [[nodiscard]] double operations(std::span<const TensorType> inputs) const override;
  [[nodiscard]] std::string describe() const override;

 private:
  [[nodiscard]] std::int64_t head_columns() const;
  [[nodiscard]] std::int64_t sum_columns() const { return 2 * settings_.kv_heads * head_columns(); }
  [[nodiscard]] Tensor sums_for(const PassContext& context, const Dims& dims) const;
  void keep(const PassContext& context, Tensor input, Stash& stash) const;
  void collect(const PassContext& context, Stash& stash, detail::SliceRows own);
  void check(const char* what, const Tensor& tensor, std::int64_t columns) const;

  Settings settings_;
  std::vector<detail::SliceRows> slices_;  // of the pass at hand, in order; empty between passes
};

}  // namespace millrace
