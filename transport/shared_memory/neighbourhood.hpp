// Which ranks may try to share memory, where they have met over something else.
#pragma once

#include <string>

namespace millrace::shared_memory {

/// A word that all processes of this user on this running system have in common, and no others:
/// whether two of them see each other shows the socket at which one answers the other. Empty where
/// this process cannot share memory, or cannot tell.
[[nodiscard]] std::string neighbourhood();

/// A name, which nobody can guess, of a socket without a file. Throws TransportError where the
/// system has no random numbers.
[[nodiscard]] std::string nameless_socket();

}  // namespace millrace::shared_memory
