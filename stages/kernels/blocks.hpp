// Work of a pass cut into blocks, for the threads that its rank has (PassContext::workers).
//
// A block of sums or of a product may give other bits than the whole, so where they are cut decides
// bits and depends on shapes alone. Rows that know nothing of one another may be cut anywhere.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "millrace/stages/stage.hpp"
#include "stages/kernels/blocked_signals.hpp"

namespace millrace {

/// Whether the rank's threads share this number of blocks; else the calling one does them alone.
[[nodiscard]] inline bool is_shared(const PassContext& context, std::int64_t blocks) {
  return context.workers != nullptr && blocks > 1;
}

/// body(0), ..., body(blocks - 1). Signals of a pass that is shared are not blocked in `body`.
template <class Body>
void for_blocks(const PassContext& context, std::int64_t blocks, const Body& body) {
  if (is_shared(context, blocks)) {
    const UnblockedSignals signals(context);
    return context.workers->run(blocks, std::ref(body));
  }
  for (std::int64_t block = 0; block < blocks; ++block) body(block);
}

/// Numbers that are worth handing to another thread, which takes some 10 microseconds.
inline constexpr std::int64_t kNumbersTogether = 1 << 15;

/// body(first, last) over ranges that cover rows [0, rows), for rows of `columns` numbers that know
/// nothing of one another. One range where the rank has one thread.
template <class Body>
void for_rows(const PassContext& context,
              std::int64_t rows,
              std::int64_t columns,
              const Body& body) {
  const std::int64_t together =
      context.workers == nullptr
          ? std::max<std::int64_t>(rows, 1)
          : std::max<std::int64_t>(1, kNumbersTogether / std::max<std::int64_t>(columns, 1));
  for_blocks(context, (rows + together - 1) / together, [&](std::int64_t block) {
    body(block * together, std::min(rows, (block + 1) * together));
  });
}

/// The same of single numbers [0, count) that know nothing of one another. Ranges begin where
/// vectors of any length do.
template <class Body>
void for_numbers(const PassContext& context, std::int64_t count, const Body& body) {
  constexpr std::int64_t kRow = 1024;
  for_rows(context, (count + kRow - 1) / kRow, kRow, [&](std::int64_t first, std::int64_t last) {
    body(first * kRow, std::min(count, last * kRow));
  });
}

/// The context of a block that may be shared, which is one thread's.
[[nodiscard]] inline PassContext of_one_thread(const PassContext& context) {
  PassContext alone = context;
  if (context.workers != nullptr) alone.blocked_signals = nullptr;
  alone.workers = nullptr;
  return alone;
}

}  // namespace millrace
