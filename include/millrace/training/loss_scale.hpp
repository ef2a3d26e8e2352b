// The loss scale: a factor on the loss that keeps f16 gradients above the smallest f16 number. It
// is divided out before any other use of the gradients.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "millrace/core/tensor.hpp"

namespace millrace {

enum class LossScaleKind : std::uint8_t { None, Static, Dynamic };

/// How the loss is scaled (Micikevicius et al., "Mixed Precision Training", ICLR 2018,
/// section 3.2). Dynamic follows PyTorch's GradScaler: after `interval` steps in a row whose
/// gradient was finite the scale is multiplied by `growth`; after one whose gradient was not, which
/// is skipped, by `backoff`, and the count begins again. It stays between `floor` and `ceiling`. A
/// power of two changes no bit of a gradient that neither overflows nor underflows.
struct LossScaleOptions {
  LossScaleKind kind = LossScaleKind::None;
  double initial = 65536;  ///< of Static: the scale
  double growth = 2;
  double backoff = 0.5;
  std::int64_t interval = 2000;
  double floor = 1;
  double ceiling = 16777216;

  friend bool operator==(const LossScaleOptions&, const LossScaleOptions&) = default;
};

/// The scale of the next step, and how many finite steps in a row stand behind it.
struct LossScale {
  double value = 1;
  std::int64_t finite_in_a_row = 0;

  friend bool operator==(const LossScale&, const LossScale&) = default;
};

/// What training begins with. Throws InvalidArgument when a setting is out of its range.
[[nodiscard]] LossScale first_scale(const LossScaleOptions& options);

/// After a step whose gradient was finite or was not.
[[nodiscard]] LossScale next_scale(const LossScale& scale,
                                   bool finite,
                                   const LossScaleOptions& options);

/// Dynamic for f16, whose largest number is 65,504; None for bf16 and f32, which reach as far as
/// each other.
[[nodiscard]] LossScaleOptions loss_scale_for(DType precision);

/// Reads "none", "static:1024" or "dynamic[:initial=65536,growth=2,backoff=0.5,interval=2000,
/// floor=1,ceiling=16777216]". Throws InvalidArgument that says what is allowed.
[[nodiscard]] LossScaleOptions parse_loss_scale(std::string_view text);

/// In that form, with all that the kind uses.
[[nodiscard]] std::string to_string(const LossScaleOptions& options);

}  // namespace millrace
