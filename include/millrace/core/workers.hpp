// Threads that share the work of one pass: what a kernel sees of them.
#pragma once

#include <cstdint>
#include <functional>

namespace millrace {

/// Threads among which a pass divides blocks of its work. How the work is cut into blocks decides
/// bits, so a kernel cuts it by its shape alone; who does which block decides nothing.
/// Thread-safety: `run` is called by one thread at a time.
class Workers {
 public:
  Workers() = default;
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;
  virtual ~Workers() = default;

  /// Calls body(0), ..., body(blocks - 1), each once, some of them at the same time, and returns
  /// behind all of them. What one of them throws is thrown here; blocks that had not begun by then
  /// may be left out.
  virtual void run(std::int64_t blocks, const std::function<void(std::int64_t)>& body) = 0;
};

}  // namespace millrace
