// What ends a rank's sleep: its doorbell, which others ring, and ranks that connect or leave.
#pragma once

#include <cstdint>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "millrace/core/ids.hpp"

namespace millrace::shared_memory {

enum class EventKind : std::uint32_t {
  Bell,
  Listener,
  Guest,
  From,    ///< the socket over which a rank gives us memory
  To,      ///< the one over which we give it ours: nothing but its end
  Process  ///< its process has ended
};

struct Event {
  EventKind kind;
  Rank rank;
};

/// As the number that the system keeps for us.
[[nodiscard]] inline std::uint64_t pack(const Event& event) {
  return std::uint64_t{static_cast<std::uint32_t>(event.kind)} << 32U |
         static_cast<std::uint32_t>(event.rank.value);
}

[[nodiscard]] inline Event unpack(std::uint64_t number) {
  return {static_cast<EventKind>(number >> 32U),
          Rank{static_cast<std::int32_t>(static_cast<std::uint32_t>(number))}};
}

/// Makes a received doorbell one that never blocks. False for what has the type of a
/// file, as an eventfd has none: a write to it may end this process, as one to a pipe that no
/// process reads does.
[[nodiscard]] inline bool hang_up_bell(int file) {
  struct stat facts {};
  return ::fstat(file, &facts) == 0 && (facts.st_mode & S_IFMT) == 0 &&
         ::fcntl(file, F_SETFL, O_NONBLOCK) == 0;
}

/// Rings an eventfd; one that cannot count any further has been rung already.
inline void wake(int bell) noexcept {
  const std::uint64_t one = 1;
  static_cast<void>(::write(bell, &one, sizeof one));
}

inline void quiet(int bell) noexcept {
  std::uint64_t ignored = 0;
  static_cast<void>(::read(bell, &ignored, sizeof ignored));
}

}  // namespace millrace::shared_memory
