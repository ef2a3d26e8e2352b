// The one place that reads environment variables.
#pragma once

#include <string>
#include <unistd.h>

#include "millrace/transport/environment.hpp"

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

}  // namespace millrace::cli
