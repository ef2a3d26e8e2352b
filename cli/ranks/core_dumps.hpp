// Processes that hold secret keys leave no picture of their memory behind.
#pragma once

#include <iostream>
#include <sys/prctl.h>

namespace millrace::cli {

inline void warn_of_dumps() {
  std::cerr << "millrace: --core-dumps: a core dump of this process holds its secret key\n";
}

/// From now on this process leaves no core dump and no other process of its user may look into it,
/// unless the user `wants` dumps all the same, who is warned then. For the time before the first
/// secret is read or made; the network library's copies of it can be wiped by nobody.
inline void keep_out_of_dumps(bool wants) {
  if (wants)
    warn_of_dumps();
  else
    ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

}  // namespace millrace::cli
