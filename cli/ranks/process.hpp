// What a process of the command sets for the processes that it starts.
#pragma once

#include <cstdlib>
#include <iostream>
#include <string>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "millrace/core/error.hpp"
#include "millrace/transport/launch.hpp"

namespace millrace::cli {

/// Processes started from now on get no rank from a launcher's variables. The process must
/// have one thread yet.
inline void forget_identity() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe)
  for (const std::string& name : identity_variables()) ::unsetenv(name.c_str());
}

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

inline void warn_of_dumps() {
  std::cerr << "millrace: --core-dumps: a core dump of this process holds its secret key\n";
}

/// From now on this process leaves no core dump and no other process of its user may look into it,
/// unless the user `wants` dumps all the same, who is warned then. For the time before the first
/// secret is read or made; nothing can wipe the network library's copies of it.
inline void keep_out_of_dumps(bool wants) {
  if (wants)
    warn_of_dumps();
  else
    ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

}  // namespace millrace::cli
