// Attention of one head of one sample: blocks of queries against all keys up to their last one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "stages/kernels/exponential.hpp"
#include "stages/kernels/precision.hpp"
#include "stages/kernels/product.hpp"
#include "stages/kernels/reductions.hpp"

namespace millrace {

/// Queries that are handled together.
inline constexpr std::int64_t kQueryBlock = 64;

/// One head: q [positions, columns]; k and v [before + positions, columns], of which query i sees
/// the first before + i + 1.
template <class T>
struct Head {
  const T* q;
  const T* k;
  const T* v;
  std::int64_t positions;
  std::int64_t columns;
  std::int64_t before = 0;
};

/// Queries [first, first + rows) see keys [0, keys); the last keys only the last queries do.
struct QueryBlock {
  std::int64_t first = 0;
  std::int64_t rows = 0;
  std::int64_t keys = 0;
};

template <class T, class Body>
void for_each_block(const Head<T>& head, const Body& body) {
  for (std::int64_t first = 0; first < head.positions; first += kQueryBlock) {
    const std::int64_t rows = std::min(kQueryBlock, head.positions - first);
    body(QueryBlock{first, rows, head.before + first + rows});
  }
}

/// row[0, seen) to its softmax, in place; 0 after.
template <class T>
void soften(T* row, std::int64_t seen, std::int64_t keys) {
  const T largest = row_max(row, seen);
  for (std::int64_t s = 0; s < seen; ++s) row[s] = exponential(row[s] - largest);
  const T sum = row_sum<T>(seen, [&](std::int64_t s) { return row[s]; });
  const T factor = T(1) / sum;
  for (std::int64_t s = 0; s < seen; ++s) row[s] *= factor;
  std::fill(row + seen, row + keys, T(0));
}

/// p [rows, keys] of the block.
template <class T>
void block_shares(const PassContext& context, const Head<T>& head, const QueryBlock& block, T* p) {
  make_input_gradient<T>(context,
                         {block.rows, block.keys, head.columns},
                         head.q + block.first * head.columns,
                         head.k,
                         p);
  const T scale = T(1) / std::sqrt(static_cast<T>(head.columns));
  for (std::int64_t i = 0; i < block.rows; ++i) {
    T* row = p + i * block.keys;
    for (std::int64_t s = 0; s < block.keys; ++s) row[s] *= scale;
    soften(row, head.before + block.first + i + 1, block.keys);
  }
}

/// y [positions, columns]; `shares` has room for kQueryBlock * (before + positions) numbers.
template <class T>
void attend(const PassContext& context, const Head<T>& head, T* shares, T* y) {
  std::fill_n(y, head.positions * head.columns, T(0));
  for_each_block(head, [&](const QueryBlock& block) {
    block_shares(context, head, block, shares);
    add_forward<T>(context,
                   {block.rows, block.keys, head.columns},
                   shares,
                   head.v,
                   y + block.first * head.columns);
  });
}

/// ds of the block from p and dp, in the place of dp; with the factor of q . k.
template <class T>
void score_gradients(const QueryBlock& block, std::int64_t columns, const T* p, T* dp) {
  const T scale = T(1) / std::sqrt(static_cast<T>(columns));
  for (std::int64_t i = 0; i < block.rows; ++i) {
    const T* share = p + i * block.keys;
    T* gradient = dp + i * block.keys;
    const T along = row_sum<T>(block.keys, [&](std::int64_t s) { return share[s] * gradient[s]; });
    for (std::int64_t s = 0; s < block.keys; ++s)
      gradient[s] = share[s] * (gradient[s] - along) * scale;
  }
}

/// Adds to dq [positions, columns], dk and dv [before + positions, columns] what dy [positions,
/// columns] makes of them. `shares` and `scores` have room for kQueryBlock * (before + positions)
/// numbers.
template <class T>
void add_head_gradients(const PassContext& context,
                        const Head<T>& head,
                        const T* dy,
                        T* shares,
                        T* scores,
                        T* dq,
                        T* dk,
                        T* dv) {
  for_each_block(head, [&](const QueryBlock& block) {
    const ProductShape shape{block.rows, block.keys, head.columns};
    const std::int64_t from = block.first * head.columns;
    block_shares(context, head, block, shares);
    add_weight_gradient<T>(context, shape, shares, dy + from, dv);
    make_input_gradient<T>(context, shape, dy + from, head.v, scores);
    score_gradients(block, head.columns, shares, scores);
    add_forward<T>(context, shape, scores, head.k, dq + from);
    add_weight_gradient<T>(context, shape, scores, head.q + from, dk);
  });
}

}  // namespace millrace
