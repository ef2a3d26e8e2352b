// How messages of this room name a rank and a process.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <unistd.h>

#include "millrace/core/ids.hpp"

namespace millrace {

/// "rank 3".
inline std::string words_of(Rank rank) {
  return "rank " + std::to_string(rank.value);
}

/// "process 7 on n1".
inline std::string words_of_this_process() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host = {"this host"};
  std::string name = host.data();
  std::ranges::replace(name, '\n', ' ');
  return "process " + std::to_string(::getpid()) + " on " + name;
}

}  // namespace millrace
