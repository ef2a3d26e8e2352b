// How many messages a receiver has taken: what makes room in the channels to it.
#pragma once

#include <array>
#include <cstdint>

namespace millrace {

/// Of one sender, per Direction.
using TakenCounts = std::array<std::uint64_t, 3>;

}  // namespace millrace
