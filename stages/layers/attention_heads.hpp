// The heads of attention: taken out of the rows of all slices, turned by their positions, and put
// back.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <utility>

#include "millrace/stages/layer.hpp"
#include "stages/kernels/attention.hpp"
#include "stages/kernels/blocks.hpp"
#include "stages/kernels/precision.hpp"

namespace millrace {

struct AttentionSettings {
  std::int64_t columns = 0;  ///< of x
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  double rotary_base = 0;  ///< 0: not turned
  DType dtype = DType::F32;
};

/// Rows x of one slice, and where the gradients of its keys and values add up: [samples, positions,
/// 2 kv_heads d]; null where nothing of a later slice has come, or will.
struct SliceRows {
  Tensor x;
  Tensor* sums = nullptr;
  std::int64_t first = 0;  // position
};

/// The numbers of one head in rows [positions, row columns]: from column `first` on.
struct HeadPlace {
  std::int64_t positions = 0;
  std::int64_t row = 0;      // columns of a row
  std::int64_t columns = 0;  // of the head
  std::int64_t first = 0;

  [[nodiscard]] HeadPlace at(std::int64_t slot) const {
    return {positions, row, columns, slot * columns};
  }
  [[nodiscard]] std::int64_t sample() const { return positions * row; }
};

template <class T>
void take_out(const T* rows, const HeadPlace& place, T* head) {
  for (std::int64_t t = 0; t < place.positions; ++t)
    std::copy_n(rows + t * place.row + place.first, place.columns, head + t * place.columns);
}

template <class T>
void put_back(const T* head, const HeadPlace& place, T* rows) {
  for (std::int64_t t = 0; t < place.positions; ++t)
    std::copy_n(head + t * place.columns, place.columns, rows + t * place.row + place.first);
}

template <class T>
void add_back(const T* head, const HeadPlace& place, T* rows) {
  for (std::int64_t t = 0; t < place.positions; ++t)
    for (std::int64_t i = 0; i < place.columns; ++i)
      rows[t * place.row + place.first + i] += head[t * place.columns + i];
}

/// Cosines and sines of the angles by position: T [2, positions, columns / 2]; empty without base.
template <class T>
Tensor angles(const PassContext& context,
              const AttentionSettings& of,
              std::int64_t positions,
              std::int64_t columns) {
  if (of.rotary_base == 0) return {};
  const std::int64_t half = columns / 2;
  Tensor table = context.make(of.dtype, {2, positions, half});
  T* cosine = values<T>(table);
  T* sine = cosine + positions * half;
  for (std::int64_t i = 0; i < half; ++i) {
    const double step =
        std::pow(of.rotary_base, -2.0 * static_cast<double>(i) / static_cast<double>(columns));
    for (std::int64_t t = 0; t < positions; ++t) {
      const double angle = static_cast<double>(t) * step;
      cosine[t * half + i] = static_cast<T>(std::cos(angle));
      sine[t * half + i] = static_cast<T>(std::sin(angle));
    }
  }
  return table;
}

/// Turns rows [positions, columns] of a head, the first of them at position `from`, by the angles,
/// or back with `sign` -1.
template <class T>
void turn(const Tensor& table, std::int64_t from, std::int64_t positions, T sign, T* head) {
  if (!table) return;
  const std::int64_t half = table.dims()[2];
  const T* cosine = values<T>(table) + from * half;
  const T* sine = cosine + table.dims()[1] * half;
  for (std::int64_t t = 0; t < positions; ++t)
    for (std::int64_t i = 0; i < half; ++i) {
      T& a = head[t * 2 * half + i];
      T& b = head[t * 2 * half + half + i];
      const T c = cosine[t * half + i];
      const T s = sign * sine[t * half + i];
      const T turned = a * c - b * s;
      b = b * c + a * s;
      a = turned;
    }
}

/// Memory for one head at a time, and where it lies in x, in y and in their gradients. Heads are
/// numbered by groups, those that share keys and values, sample after sample.
template <class T>
class Heads {
 public:
  /// `slices`: those before, in order, and the current one. `table`: the angles of its positions.
  Heads(const PassContext& context,
        const AttentionSettings& settings,
        std::span<SliceRows> slices,
        const Tensor& table)
      : pass_(of_one_thread(context)),
        context_(pass_.context()),
        settings_(settings),
        slices_(slices),
        before_(slices.back().first),
        own_(slices.back().x.dims()),
        in_(rows_of(slices.back())),
        out_{own_[1], in_.columns * settings.heads, in_.columns, 0},
        table_(table),
        buffers_(context.make(settings.dtype, {kBuffers, before_ + own_[1], in_.columns})),
        blocks_(context.make(settings.dtype, {2, kQueryBlock, before_ + own_[1]})) {}

  /// y of the heads of groups [first, last).
  void forward(std::int64_t first, std::int64_t last, T* y) {
    for_each_group(first, last, [&](std::int64_t sample, std::int64_t group) {
      take_keys(sample, group);
      for_each_head(group, [&](std::int64_t head) {
        attend<T>(context_, take_query(sample, head), blocks(0), buffer(kResult));
        put_back(buffer(kResult), out_.at(head), y + sample * out_.sample());
      });
    });
  }

  /// dx of the heads of groups [first, last); what earlier slices get is added to their sums.
  void backward(std::int64_t first, std::int64_t last, const T* dy, T* dx) {
    for_each_group(first, last, [&](std::int64_t sample, std::int64_t group) {
      T* gradients = dx + sample * in_.sample();
      take_keys(sample, group);
      clear(kKeyGradient);
      clear(kValueGradient);
      for_each_head(group, [&](std::int64_t head) {
        take_out(dy + sample * out_.sample(), out_.at(head), buffer(kResult));
        clear(kQueryGradient);
        add_head_gradients<T>(context_,
                              take_query(sample, head),
                              buffer(kResult),
                              blocks(0),
                              blocks(1),
                              buffer(kQueryGradient),
                              buffer(kKeyGradient),
                              buffer(kValueGradient));
        turn(table_, before_, own_[1], T(-1), buffer(kQueryGradient));
        put_back(buffer(kQueryGradient), in_.at(head), gradients);
      });
      turn(table_, 0, before_ + own_[1], T(-1), buffer(kKeyGradient));
      give(sample, group, gradients);
    });
  }

 private:
  enum Buffer : std::int64_t {
    kQuery,
    kKey,
    kValue,
    kResult,
    kQueryGradient,
    kKeyGradient,
    kValueGradient,
    kBuffers
  };

  [[nodiscard]] HeadPlace rows_of(const SliceRows& slice) const {
    return {slice.x.dims()[1],
            settings_.columns,
            settings_.columns / (settings_.heads + 2 * settings_.kv_heads),
            0};
  }
  [[nodiscard]] HeadPlace sums_of(const SliceRows& slice) const {
    const HeadPlace rows = rows_of(slice);
    return {rows.positions, 2 * settings_.kv_heads * rows.columns, rows.columns, 0};
  }
  [[nodiscard]] std::int64_t key_slot(std::int64_t group) const { return settings_.heads + group; }
  [[nodiscard]] std::int64_t value_slot(std::int64_t group) const {
    return key_slot(group) + settings_.kv_heads;
  }

  T* buffer(Buffer which) {
    return values<T>(buffers_) + which * (before_ + own_[1]) * in_.columns;
  }
  T* blocks(std::int64_t which) {
    return values<T>(blocks_) + which * kQueryBlock * (before_ + own_[1]);
  }
  void clear(Buffer which) { std::fill_n(buffer(which), (before_ + own_[1]) * in_.columns, T(0)); }

  template <class Body>
  void for_each_group(std::int64_t first, std::int64_t last, const Body& body) const {
    for (std::int64_t i = first; i < last; ++i)
      body(i / settings_.kv_heads, i % settings_.kv_heads);
  }

  template <class Body>
  void for_each_head(std::int64_t group, const Body& body) const {
    const std::int64_t heads = settings_.heads / settings_.kv_heads;
    for (std::int64_t head = group * heads; head < (group + 1) * heads; ++head) body(head);
  }

  /// Keys and values of all slices, one after the other.
  void take_keys(std::int64_t sample, std::int64_t group) {
    for (const SliceRows& slice : slices_) {
      const HeadPlace place = rows_of(slice);
      const T* rows = values<T>(slice.x) + sample * place.sample();
      take_out(rows, place.at(key_slot(group)), buffer(kKey) + slice.first * place.columns);
      take_out(rows, place.at(value_slot(group)), buffer(kValue) + slice.first * place.columns);
    }
    turn(table_, 0, before_ + own_[1], T(1), buffer(kKey));
  }

  Head<T> take_query(std::int64_t sample, std::int64_t head) {
    const T* rows = values<T>(std::as_const(slices_.back().x)) + sample * in_.sample();
    take_out(rows, in_.at(head), buffer(kQuery));
    turn(table_, before_, own_[1], T(1), buffer(kQuery));
    return {buffer(kQuery), buffer(kKey), buffer(kValue), own_[1], in_.columns, before_};
  }

  /// Gradients of keys and values to the sums of earlier slices, and with its own sums to dx.
  void give(std::int64_t sample, std::int64_t group, T* dx) {
    for (const SliceRows& slice : slices_) {
      const HeadPlace sums = sums_of(slice);
      const std::int64_t from = slice.first * sums.columns;
      if (slice.sums == nullptr) continue;
      T* rows = values<T>(*slice.sums) + sample * sums.sample();
      add_back(buffer(kKeyGradient) + from, sums.at(group), rows);
      add_back(buffer(kValueGradient) + from, sums.at(settings_.kv_heads + group), rows);
      if (&slice != &slices_.back()) continue;
      take_out(rows, sums.at(group), buffer(kKeyGradient) + from);
      take_out(rows, sums.at(settings_.kv_heads + group), buffer(kValueGradient) + from);
    }
    put_back(buffer(kKeyGradient) + before_ * in_.columns, in_.at(key_slot(group)), dx);
    put_back(buffer(kValueGradient) + before_ * in_.columns, in_.at(value_slot(group)), dx);
  }

  const BlockedPass pass_;
  const PassContext& context_;
  const AttentionSettings& settings_;
  std::span<SliceRows> slices_;
  std::int64_t before_;  // positions of earlier slices
  Dims own_;
  HeadPlace in_;
  HeadPlace out_;
  const Tensor& table_;
  Tensor buffers_;
  Tensor blocks_;
};

/// body(heads, first, last) over ranges that cover all groups of the current slice, the last one.
template <class T, class Body>
void for_groups(const PassContext& context,
                const AttentionSettings& settings,
                std::span<SliceRows> slices,
                const Body& body) {
  const Dims& dims = slices.back().x.dims();
  const std::int64_t columns = settings.columns / (settings.heads + 2 * settings.kv_heads);
  const std::int64_t keys = slices.back().first + dims[1];
  const Tensor table = angles<T>(context, settings, keys, columns);
  const std::int64_t shares = dims[1] * keys * (settings.heads / settings.kv_heads);
  for_rows(
      context, dims[0] * settings.kv_heads, shares, [&](std::int64_t first, std::int64_t last) {
        Heads<T> heads(context, settings, slices, table);
        body(heads, first, last);
      });
}

}  // namespace millrace
