// How messages of this room name a rank.
#pragma once

#include <string>

#include "millrace/core/ids.hpp"

namespace millrace {

/// "rank 3".
inline std::string words_of(Rank rank) {
  return "rank " + std::to_string(rank.value);
}

}  // namespace millrace
