// Stop: how the caller of a long computation ends it. No clock in the library: the caller's
// predicate looks at one, or counts.
#pragma once

#include <functional>

#include "millrace/core/error.hpp"

namespace millrace {

/// Asked again and again during the work, about once per 65,536 actions looked at (below a
/// millisecond); true ends it. Empty: never.
using Stop = std::function<bool()>;

/// Thrown by what was stopped and has nothing to give back.
class Stopped : public Error {
 public:
  using Error::Error;
};

}  // namespace millrace
