// The one place that reads environment variables, and takes some away.
#pragma once

#include <cstdlib>
#include <string>
#include <unistd.h>

#include "millrace/transport/launch.hpp"

namespace millrace::cli {

[[nodiscard]] inline Variables environment() {
  Variables variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return variables;
}

/// From now on no engine tells the processes that are started here who they are. The process must
/// have one thread yet.
inline void forget_identity() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe)
  for (const std::string& name : identity_variables()) ::unsetenv(name.c_str());
}

}  // namespace millrace::cli
