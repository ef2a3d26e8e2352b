// Refusals of options that no schedule, or not this one, can take.
#include "plan/generators/options.hpp"

#include <cstdint>

#include "plan/number_text.hpp"

namespace millrace::generators {

namespace {

constexpr std::int64_t kMostForwards = std::int64_t{1} << 27;

void require_positive(const char* option, int value, const char* what) {
  require(value >= 1,
          std::string(option) + " is " + std::to_string(value) + "; " + what + " is at least 1");
}

/// Names of the schedules for which `flag` is set: "interleaved, bfs, ...".
std::string names_with(bool ScheduleEntry::*flag) {
  std::string names;
  for (const ScheduleEntry& entry : schedules())
    if (entry.*flag) names += (names.empty() ? "" : ", ") + std::string(entry.name);
  return names;
}

void refuse_unless(const ScheduleEntry& entry,
                   bool ScheduleEntry::*flag,
                   bool is_set,
                   const std::string& typed,
                   const char* noun) {
  require(!is_set || entry.*flag,
          typed + " was given, but schedule '" + std::string(entry.name) + "' has no " + noun +
              "; these have: " + names_with(flag));
}

std::string typed(const char* option, std::optional<int> value) {
  return std::string(option) + " " + std::to_string(value.value_or(0));
}

}  // namespace

void require_order_found(bool found, const ScheduleOptions& options) {
  require(found,
          "--memory-limit is " + plan::number_text(memory_limit_of(options)) +
              "; no order was found under it, p x mem-f = " +
              plan::number_text(options.ranks * options.memory_forward) + " works");
}

void require_counts(const ScheduleEntry& entry, const ScheduleOptions& options) {
  require_positive("-p", options.ranks, "the number of ranks");
  require_positive("-m", options.micro_batches, "the number of micro-batches");
  if (options.chunks) require_positive("-v", *options.chunks, "the number of chunks of a rank");
  if (options.slices) require_positive("-q", *options.slices, "the number of slices");
  if (options.group) require_positive("--group", *options.group, "a group of micro-batches");
  if (options.waves) require_positive("--waves", *options.waves, "the number of waves");

  // Each factor below is under 2^31 and the product is compared as it grows, so nothing overflows.
  std::int64_t forwards = options.ranks;
  for (const int factor : {options.micro_batches,
                           entry.chunked ? options.chunks.value_or(entry.default_chunks) : 1,
                           entry.sliced ? slices_of(options) : 1,
                           entry.waved ? 2 * std::min(options.waves.value_or(1), 1 << 28) : 1}) {
    forwards = forwards > kMostForwards ? forwards : forwards * factor;
    require(forwards <= kMostForwards,
            "-p " + std::to_string(options.ranks) + " and -m " +
                std::to_string(options.micro_batches) + " need more than " +
                std::to_string(kMostForwards) + " forwards; smaller counts fit in memory");
  }
}

void require_known_options(const ScheduleEntry& entry, const ScheduleOptions& options) {
  const bool lifo = options.order == BackwardOrder::Lifo;
  refuse_unless(entry,
                &ScheduleEntry::chunked,
                options.chunks.has_value(),
                typed("-v", options.chunks),
                "free number of chunks");
  refuse_unless(entry,
                &ScheduleEntry::sliced,
                options.slices.has_value(),
                typed("-q", options.slices),
                "slices");
  refuse_unless(entry,
                &ScheduleEntry::grouped,
                options.group.has_value(),
                typed("--group", options.group),
                "groups");
  refuse_unless(entry,
                &ScheduleEntry::waved,
                options.waves.has_value(),
                typed("--waves", options.waves),
                "waves");
  refuse_unless(entry,
                &ScheduleEntry::ordered,
                options.order.has_value(),
                lifo ? "--order lifo" : "--order fifo",
                "choice of backward order");
  refuse_unless(entry,
                &ScheduleEntry::limited,
                options.memory_limit.has_value(),
                "--memory-limit",
                "memory limit");
}

}  // namespace millrace::generators
