// Attention: heads are taken out of the rows, turned by their positions, and put back.
#include "millrace/stages/attention.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "stages/kernels/attention.hpp"
#include "stages/kernels/precision.hpp"
#include "stages/layers/check.hpp"
#include "stages/layers/kinds.hpp"

namespace millrace {
namespace {

/// The numbers of one head in rows [positions, row columns]: from column `first` on.
struct Place {
  std::int64_t positions = 0;
  std::int64_t row = 0;      // columns of a row
  std::int64_t columns = 0;  // of the head
  std::int64_t first = 0;
};

template <class T>
void take_out(const T* rows, const Place& place, T* head) {
  for (std::int64_t t = 0; t < place.positions; ++t)
    std::copy_n(rows + t * place.row + place.first, place.columns, head + t * place.columns);
}

template <class T>
void put_back(const T* head, const Place& place, T* rows) {
  for (std::int64_t t = 0; t < place.positions; ++t)
    std::copy_n(head + t * place.columns, place.columns, rows + t * place.row + place.first);
}

/// Cosines and sines of the angles by position: T [2, positions, columns / 2]; empty without base.
template <class T>
Tensor angles(const PassContext& context, const CausalAttention::Settings& of, const Place& place) {
  if (of.rotary_base == 0) return {};
  const std::int64_t half = place.columns / 2;
  Tensor table = context.make(of.dtype, {2, place.positions, half});
  T* cosine = detail::values<T>(table);
  T* sine = cosine + place.positions * half;
  for (std::int64_t i = 0; i < half; ++i) {
    const double step = std::pow(
        of.rotary_base, -2.0 * static_cast<double>(i) / static_cast<double>(place.columns));
    for (std::int64_t t = 0; t < place.positions; ++t) {
      const double angle = static_cast<double>(t) * step;
      cosine[t * half + i] = static_cast<T>(std::cos(angle));
      sine[t * half + i] = static_cast<T>(std::sin(angle));
    }
  }
  return table;
}

/// Turns the head by the angles, or back with `sign` -1.
template <class T>
void turn(const Tensor& table, const Place& place, T sign, T* head) {
  if (!table) return;
  const std::int64_t half = place.columns / 2;
  const T* cosine = detail::values<T>(table);
  const T* sine = cosine + place.positions * half;
  for (std::int64_t t = 0; t < place.positions; ++t)
    for (std::int64_t i = 0; i < half; ++i) {
      T& a = head[t * place.columns + i];
      T& b = head[t * place.columns + half + i];
      const T c = cosine[t * half + i];
      const T s = sign * sine[t * half + i];
      const T turned = a * c - b * s;
      b = b * c + a * s;
      a = turned;
    }
}

/// Memory for one head at a time, and where it lies in x, in y and in their gradients.
template <class T>
class Heads {
 public:
  Heads(const PassContext& context, const CausalAttention::Settings& settings, const Dims& dims)
      : context_(context),
        settings_(settings),
        samples_(dims[0]),
        in_{dims[1], settings.columns, settings.columns / slots(), 0},
        out_{dims[1], in_.columns * settings.heads, in_.columns, 0},
        table_(angles<T>(context, settings, in_)),
        buffers_(context.make(settings.dtype, {kBuffers, dims[1], in_.columns})),
        blocks_(context.make(settings.dtype, {2, detail::kQueryBlock, dims[1]})) {}

  /// y of all heads.
  void forward(const T* x, T* y) {
    for_each_group([&](std::int64_t sample, std::int64_t group) {
      const T* rows = x + sample * in_.positions * in_.row;
      take_keys(rows, group);
      for_each_head(group, [&](std::int64_t head) {
        detail::attend<T>(context_, take_query(rows, head), blocks(0), buffer(kResult));
        put_back(buffer(kResult), at(out_, head), y + sample * out_.positions * out_.row);
      });
    });
  }

  /// dx of all heads.
  void backward(const T* x, const T* dy, T* dx) {
    for_each_group([&](std::int64_t sample, std::int64_t group) {
      const T* rows = x + sample * in_.positions * in_.row;
      T* gradients = dx + sample * in_.positions * in_.row;
      take_keys(rows, group);
      clear(kKeyGradient);
      clear(kValueGradient);
      for_each_head(group, [&](std::int64_t head) {
        take_out(dy + sample * out_.positions * out_.row, at(out_, head), buffer(kResult));
        clear(kQueryGradient);
        detail::add_head_gradients<T>(context_,
                                      take_query(rows, head),
                                      buffer(kResult),
                                      blocks(0),
                                      blocks(1),
                                      buffer(kQueryGradient),
                                      buffer(kKeyGradient),
                                      buffer(kValueGradient));
        turn(table_, in_, T(-1), buffer(kQueryGradient));
        put_back(buffer(kQueryGradient), at(in_, head), gradients);
      });
      turn(table_, in_, T(-1), buffer(kKeyGradient));
      put_back(buffer(kKeyGradient), at(in_, key_slot(group)), gradients);
      put_back(buffer(kValueGradient), at(in_, value_slot(group)), gradients);
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

  [[nodiscard]] std::int64_t slots() const { return settings_.heads + 2 * settings_.kv_heads; }
  [[nodiscard]] std::int64_t key_slot(std::int64_t group) const { return settings_.heads + group; }
  [[nodiscard]] std::int64_t value_slot(std::int64_t group) const {
    return key_slot(group) + settings_.kv_heads;
  }

  [[nodiscard]] static Place at(Place place, std::int64_t slot) {
    place.first = slot * place.columns;
    return place;
  }

  T* buffer(Buffer which) {
    return detail::values<T>(buffers_) + which * in_.positions * in_.columns;
  }
  T* blocks(std::int64_t which) {
    return detail::values<T>(blocks_) + which * detail::kQueryBlock * in_.positions;
  }
  void clear(Buffer which) { std::fill_n(buffer(which), in_.positions * in_.columns, T(0)); }

  template <class Body>
  void for_each_group(const Body& body) const {
    for (std::int64_t sample = 0; sample < samples_; ++sample)
      for (std::int64_t group = 0; group < settings_.kv_heads; ++group) body(sample, group);
  }

  template <class Body>
  void for_each_head(std::int64_t group, const Body& body) const {
    const std::int64_t heads = settings_.heads / settings_.kv_heads;
    for (std::int64_t head = group * heads; head < (group + 1) * heads; ++head) body(head);
  }

  void take_keys(const T* rows, std::int64_t group) {
    take_out(rows, at(in_, key_slot(group)), buffer(kKey));
    turn(table_, in_, T(1), buffer(kKey));
    take_out(rows, at(in_, value_slot(group)), buffer(kValue));
  }

  detail::Head<T> take_query(const T* rows, std::int64_t head) {
    take_out(rows, at(in_, head), buffer(kQuery));
    turn(table_, in_, T(1), buffer(kQuery));
    return {buffer(kQuery), buffer(kKey), buffer(kValue), in_.positions, in_.columns};
  }

  const PassContext& context_;
  const CausalAttention::Settings& settings_;
  std::int64_t samples_;
  Place in_;
  Place out_;
  Tensor table_;
  Tensor buffers_;
  Tensor blocks_;
};

}  // namespace

CausalAttention::CausalAttention(const Settings& settings) : settings_(settings) {
  const std::string who = "layers." + std::to_string(settings.layer) + ": attention";
  detail::require_float(settings.dtype, who);
  require(settings.heads >= 1 && settings.kv_heads >= 1 && settings.heads % settings.kv_heads == 0,
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

std::int64_t CausalAttention::head_columns() const {
  return settings_.columns / (settings_.heads + 2 * settings_.kv_heads);
}

std::vector<TensorType> CausalAttention::infer(std::span<const TensorType> inputs) const {
  if (inputs.size() != 1 || inputs[0].dtype != settings_.dtype || inputs[0].dims.size() != 3 ||
      inputs[0].columns() != settings_.columns)
    detail::refuse_inputs(*this,
                          name_of(settings_.dtype) + std::string(" [samples, positions, ") +
                              std::to_string(settings_.columns) + "]",
                          inputs);
  const Dims& dims = inputs[0].dims;
  return {{settings_.dtype, {dims[0], dims[1], settings_.heads * head_columns()}}};
}

void CausalAttention::check(const char* what, const Tensor& tensor, std::int64_t columns) const {
  const bool fits = tensor && tensor.dtype() == settings_.dtype && tensor.dims().size() == 3 &&
                    tensor.dims()[2] == columns;
  detail::check_tensor(*this, what, tensor, fits, [&] {
    return name_of(settings_.dtype) + std::string(" [samples, positions, ") +
           std::to_string(columns) + "]";
  });
}

TensorList CausalAttention::forward(const PassContext& context, TensorList inputs, Stash& stash) {
  Tensor input = detail::only(*this, "input", std::move(inputs));
  check("input", input, settings_.columns);
  if (context.slices > 1)
    throw InvalidArgument(describe() + " takes whole sequences, not slices of them");
  const Dims& dims = input.dims();
  Tensor output =
      context.make(settings_.dtype, {dims[0], dims[1], settings_.heads * head_columns()});
  detail::with_precision(settings_.dtype, [&](auto zero) {
    using T = decltype(zero);
    Heads<T>(context, settings_, dims)
        .forward(detail::values<T>(std::as_const(input)), detail::values<T>(output));
  });
  if (context.training) stash.keep(context, std::move(input));
  return TensorList(std::move(output));
}

TensorList CausalAttention::backward_input(const PassContext& context,
                                           TensorList output_gradients,
                                           Stash& stash,
                                           bool wanted) {
  const Tensor gradient = detail::only(*this, "output gradient", std::move(output_gradients));
  check("output gradient", gradient, settings_.heads * head_columns());
  TensorList gradients;
  if (wanted) {
    const Tensor input = stash.read(context, 0);
    Tensor input_gradient = context.make(settings_.dtype, input.dims());
    detail::with_precision(settings_.dtype, [&](auto zero) {
      using T = decltype(zero);
      Heads<T>(context, settings_, input.dims())
          .backward(detail::values<T>(input),
                    detail::values<T>(gradient),
                    detail::values<T>(input_gradient));
    });
    gradients.push_back(std::move(input_gradient));
  }
  stash.clear(context);
  return gradients;
}

LayerBytes CausalAttention::bytes(std::span<const TensorType> inputs) const {
  return {.after_forward = size_of(kept_dtype(settings_.dtype)) *
                           static_cast<std::size_t>(inputs[0].dims.elements())};
}

std::string CausalAttention::describe() const {
  return "layers." + std::to_string(settings_.layer) + ": attention of " +
         std::to_string(settings_.heads) + " heads of " + std::to_string(head_columns()) +
         (settings_.kv_heads == settings_.heads
              ? ""
              : ", " + std::to_string(settings_.kv_heads) + " of keys and values");
}

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
