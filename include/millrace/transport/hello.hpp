// What ranks say of themselves when they meet, whatever they meet by.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace millrace {

/// Version of what travels between processes, compared before everything else: ranks of two
/// versions name both and part.
inline constexpr std::uint16_t kProtocolVersion = 5;

/// Names and values that must be equal on all ranks, in the order in which they are compared.
/// Neither holds a line break; names hold no "=" and do not begin with "@".
using HelloFields = std::vector<std::pair<std::string, std::string>>;

}  // namespace millrace
