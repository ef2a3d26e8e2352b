// What a schedule can be asked for: the options it is generated with, and the one table that says
// of each its name, range, default and meaning. The catalogue and its refusals, the search, the
// command line, JSON and scheduler/README.md read that table: a new parameter is its field and its
// row.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "millrace/core/error.hpp"

namespace millrace {

/// Asked again and again during the work, about once per 65,536 actions looked at (below a
/// millisecond); true ends it. Empty: never.
using Stop = std::function<bool()>;

/// Thrown by what was stopped and has nothing to give back.
class Stopped : public Error {
 public:
  using Error::Error;
};

/// Order of the micro-batches in a backward phase that runs after all forwards.
enum class BackwardOrder : std::uint8_t { Fifo, Lifo };

/// What a generator may be asked for. Unset options take the schedule's own default; an option that
/// a schedule does not have is rejected.
struct ScheduleOptions {
  int ranks = 4;                   ///< p
  int micro_batches = 8;           ///< m
  std::optional<int> chunks = {};  ///< v
  std::optional<int> slices = {};  ///< q
  std::optional<int> group = {};   ///< g
  std::optional<int> waves = {};   ///< w, of the wave schedule: v = 2 w
  std::optional<BackwardOrder> order =
      {};  ///< of gpipe and bfs; fifo accumulates in ascending order
  std::optional<double> memory_limit = {};  ///< in the units of memory_forward
  Stop stop = {};  ///< asked while an order is made; `generate` throws Stopped when it says so
};

/// One row of the table. Its type is that of its field: a count, an order, or a limit.
struct ScheduleParameter {
  std::string_view name;         ///< its identity: the field of ScheduleOptions
  std::string_view symbol = {};  ///< in formulas and titles: "m"; empty: it stands in neither
  std::variant<int ScheduleOptions::*,
               std::optional<int> ScheduleOptions::*,
               std::optional<BackwardOrder> ScheduleOptions::*,
               std::optional<double> ScheduleOptions::*>
      field;
  std::string_view noun;           ///< what a refusal calls it: "the number of waves"
  std::string_view lacked;         ///< what a schedule without it has not: "waves"
  std::string_view help;           ///< one line
  std::optional<int> preset = {};  ///< the default of optional counts, where all schedules share it
  int least = 1;                   ///< smallest value; the largest is that of the type
  int forwards = 0;       ///< forwards of a micro-batch on a rank for each unit of it; 0: unchanged
  bool searched = false;  ///< search chooses it by itself
};

/// All parameters, in the order in which they are told.
inline constexpr std::array kScheduleParameters = {
    ScheduleParameter{.name = "ranks",
                      .symbol = "p",
                      .field = &ScheduleOptions::ranks,
                      .noun = "the number of ranks",
                      .lacked = "ranks",
                      .help = "Ranks",
                      .forwards = 1},
    ScheduleParameter{.name = "micro_batches",
                      .symbol = "m",
                      .field = &ScheduleOptions::micro_batches,
                      .noun = "the number of micro-batches",
                      .lacked = "micro-batches",
                      .help = "Micro-batches of a mini-batch",
                      .forwards = 1},
    ScheduleParameter{.name = "chunks",
                      .symbol = "v",
                      .field = &ScheduleOptions::chunks,
                      .noun = "the number of chunks of a rank",
                      .lacked = "free number of chunks",
                      .help = "Chunks per rank, of chunked schedules",
                      .preset = 2,
                      .forwards = 1},
    ScheduleParameter{.name = "slices",
                      .symbol = "q",
                      .field = &ScheduleOptions::slices,
                      .noun = "the number of slices",
                      .lacked = "slices",
                      .help = "Slices per micro-batch, of sliced schedules",
                      .preset = 2,
                      .forwards = 1},
    ScheduleParameter{.name = "group",
                      .symbol = "g",
                      .field = &ScheduleOptions::group,
                      .noun = "a group of micro-batches",
                      .lacked = "groups",
                      .help = "Micro-batches of a group (default: the schedule's own)",
                      .searched = true},
    ScheduleParameter{.name = "waves",
                      .symbol = "w",
                      .field = &ScheduleOptions::waves,
                      .noun = "the number of waves",
                      .lacked = "waves",
                      .help = "Waves, of the wave schedule: v = 2 w",
                      .preset = 1,
                      .forwards = 2,
                      .searched = true},
    ScheduleParameter{.name = "order",
                      .field = &ScheduleOptions::order,
                      .noun = "the backward order",
                      .lacked = "choice of backward order",
                      .help = "Backward order of gpipe and bfs",
                      .preset = 0,
                      .searched = true},
    ScheduleParameter{.name = "memory_limit",
                      .field = &ScheduleOptions::memory_limit,
                      .noun = "the memory limit of a rank",
                      .lacked = "memory limit",
                      .help = "Activations of a rank at most (default: those of p micro-batches)",
                      .least = 0},
};

/// A parameter and its value as text: what to ask a generator for.
struct ParameterValue {
  std::string_view name;
  std::string value;
};

/// Where the row called `name` stands in the table. Throws InvalidArgument for an unknown name.
[[nodiscard]] constexpr std::size_t parameter_index(std::string_view name) {
  for (std::size_t i = 0; i < kScheduleParameters.size(); ++i)
    if (kScheduleParameters[i].name == name) return i;
  throw InvalidArgument("no parameter of schedules is called '" + std::string(name) + "'");
}

/// Names of parameters. A name that the table does not have does not compile in a constant.
class ParameterSet {
 public:
  constexpr ParameterSet() = default;

  constexpr ParameterSet(std::initializer_list<std::string_view> names) {
    for (const std::string_view name : names) bits_ |= std::uint32_t{1} << parameter_index(name);
  }

  [[nodiscard]] constexpr bool has(std::string_view name) const {
    return (bits_ >> parameter_index(name) & 1U) != 0;
  }

 private:
  std::uint32_t bits_ = 0;
};

/// The values that may be given: "a whole number from 1 to 2147483647", "fifo or lifo".
[[nodiscard]] std::string allowed_values(const ScheduleParameter& parameter);

/// What holds while the value is unset: "2", "fifo"; empty where that depends on the schedule.
[[nodiscard]] std::string default_value(const ScheduleParameter& parameter);

/// The value as text, "2", "lifo", "1.5"; none where it is unset.
[[nodiscard]] std::optional<std::string> value_of(const ScheduleOptions& options,
                                                  const ScheduleParameter& parameter);

/// Sets the value from text. Throws InvalidArgument with the name, the text and what is allowed.
void set_value(ScheduleOptions& options, const ScheduleParameter& parameter, std::string_view text);

/// Back to the default.
void clear_value(ScheduleOptions& options, const ScheduleParameter& parameter);

/// Of the parameters that may be unset, those that are set.
[[nodiscard]] std::vector<ParameterValue> set_values(const ScheduleOptions& options);

/// By their symbols, "v=2 g=4", or by name where there is none, "memory_limit=3".
[[nodiscard]] std::string to_string(const std::vector<ParameterValue>& values);

}  // namespace millrace
