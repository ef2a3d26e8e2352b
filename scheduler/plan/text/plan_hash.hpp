// What guards a plan file: plan_hash (public, in text.hpp) names the program, the checksum covers
// the rest of the file.
#pragma once

#include <string>
#include <vector>

#include "millrace/scheduler/plan/text.hpp"

namespace millrace {

/// xxh3-128 over a plan's hash, name and boundaries, 32 hexadecimal digits.
[[nodiscard]] std::string plan_checksum(const std::string& hash,
                                        const std::string& name,
                                        const std::vector<int>& boundaries);

}  // namespace millrace
