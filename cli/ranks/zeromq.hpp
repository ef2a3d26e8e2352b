// What the flags of a rank mean to the ZeroMQ backend: ipc in the launcher's directory, or tcp with
// keys.
#pragma once

#include <memory>

#include "cli/ranks/backends.hpp"

namespace millrace::cli {

/// See Backend::listener.
[[nodiscard]] std::unique_ptr<Listener> zeromq_listener(const LinkFlags& flags,
                                                        const RankPlace& place);

}  // namespace millrace::cli
