// What a process was built as and computes with: where two differ, their bits may.
#pragma once

#include "millrace/transport/listener.hpp"

namespace millrace {

/// Library version, processor, compiled code and what multiplies matrices: the fields that ranks of
/// any work compare when they meet, before those of their own. See JoinOptions::fields.
/// Thread-safe.
[[nodiscard]] HelloFields build_fields();

}  // namespace millrace
