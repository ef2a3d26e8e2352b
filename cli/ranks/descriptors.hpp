// How many descriptors a process of a large job may open.
#pragma once

#include <string>
#include <sys/resource.h>

#include "millrace/core/error.hpp"

namespace millrace::cli {

/// Raises the soft limit, which is meant for programs that keep sets of descriptors in a fixed
/// size, to the hard one. Returns what holds then.
inline rlim_t open_as_many_files_as_allowed() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

/// Throws Error naming the number when a process may open fewer than `needed`.
inline void require_descriptors(std::size_t needed, const std::string& who) {
  const rlim_t allowed = open_as_many_files_as_allowed();
  if (needed > allowed)
    throw Error(who + " needs " + std::to_string(needed) +
                " descriptors, but a process may open only " + std::to_string(allowed) +
                " here (ulimit -n)");
}

}  // namespace millrace::cli
