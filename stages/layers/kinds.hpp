// The list of layer kinds: a new one is its own file, its test, and one line here.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "millrace/stages/layer_kinds.hpp"

// One list is read twice, for the declarations and for the table; only a macro can do that.
// NOLINTBEGIN(cppcoreguidelines-macro-usage)
// clang-format off
#define MILLRACE_LAYER_KINDS(kind) \
  kind(activation)                 \
  kind(add)                        \
  kind(attention)                  \
  kind(average_pool)               \
  kind(batch_norm)                 \
  kind(conv2d)                     \
  kind(dropout)                    \
  kind(embedding)                  \
  kind(group_norm)                 \
  kind(layer_norm)                 \
  kind(linear)                     \
  kind(max_pool)                   \
  kind(positions)                  \
  kind(reshape)                    \
  kind(rms_norm)                   \
  kind(running_mean)               \
  kind(swiglu)                     \
  kind(unembedding)
// clang-format on

namespace millrace {

#define MILLRACE_DECLARE(kind) [[nodiscard]] LayerKind kind##_kind();
MILLRACE_LAYER_KINDS(MILLRACE_DECLARE)
#undef MILLRACE_DECLARE
// NOLINTEND(cppcoreguidelines-macro-usage)

/// The kind whose layers are made as L(settings, inputs, place, more...).
template <class L, class... More>
[[nodiscard]] LayerKind kind_of(std::string name, std::vector<std::string> settings, More... more) {
  return {
      std::move(name),
      std::move(settings),
      [more...](
          const LayerSettings& given, std::span<const TensorType> inputs, const LayerPlace& place) {
        return std::make_unique<L>(given, inputs, place, more...);
      }};
}

}  // namespace millrace
