// The file that a rank holds as long as it lives: its lock tells the living, who must not be
// disturbed, from the dead, whose place may be taken, however they ended.
#pragma once

#include <string>

namespace millrace {

/// Opens a file of this user alone and locks it until the descriptor is closed or the process ends.
/// What a dead process left there is taken over, emptied; the first 1024 bytes are the caller's.
/// Throws TransportError while a living process holds it, naming both processes, when it is no
/// file, and when it cannot be made.
[[nodiscard]] int hold_file(const std::string& path);

/// Removes the file and lets go of it, in this order: nobody can take it over between.
void let_go(const std::string& path, int file) noexcept;

}  // namespace millrace
