// verify: is the program a correct schedule, and can it hang. Returns every violation; never throws
// for a bad program.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "millrace/scheduler/plan/program.hpp"

namespace millrace {

/// The rules, numbered as in scheduler/README.md.
enum class Rule : std::uint8_t {
  Placement =
      1,  ///< every stage of every replica on exactly one rank; ranks run only their own stages
  Completeness = 2,      ///< each op exactly once: F, and B or (I and W), for every stage and unit
  WeightAfterInput = 3,  ///< W after its I on the same rank; never B and (I, W) for one unit
  Pairs = 4,  ///< a pair is one F and one B or I of different data, without dependency, not nested
  Order = 5,  ///< program order and data dependencies have no cycle
  Messages =
      6,  ///< every rank-crossing edge has one SEND and one RECV, after producer, before consumer
  Deadlock = 7,       ///< no cycle under the named transport
  Capacity = 8,       ///< a channel's declared capacity is enough
  Memory = 9,         ///< peak memory within the limit; nothing live at the end
  Accumulation = 10,  ///< reported, never a violation: see `accumulation`
  LossWeight = 11,    ///< every micro-batch has a loss weight and the weights sum to 1
};

struct Violation {
  Rule rule = Rule::Placement;
  Rank rank;
  std::size_t position = 0;  ///< index in the rank's list
  std::string sentence;
};

/// What the messages travel on.
struct Transport {
  enum class Kind : std::uint8_t { Rendezvous, Bounded, Unbounded };
  Kind kind = Kind::Unbounded;
  int capacity = 1;  ///< messages per channel, for Bounded

  static Transport rendezvous() { return {Kind::Rendezvous, 0}; }
  static Transport bounded(int capacity) { return {Kind::Bounded, capacity}; }
  static Transport unbounded() { return {Kind::Unbounded, 0}; }
};

/// Checks rules 1 to 8 (6 to 8 only for a program that has sends and receives). Empty means valid.
/// Cost: O(actions). Thread-safety: pure function.
[[nodiscard]] std::vector<Violation> verify(const Program& program,
                                            const Transport& transport = Transport::unbounded());

/// Whether each stage adds its weight gradients in ascending unit order (slices descending inside a
/// micro-batch), so that training gives the same bits as sequential accumulation.
struct Accumulation {
  bool ascending = true;
  std::optional<Stage> broken;  ///< first stage whose order is another one
  std::string sentence;
};

[[nodiscard]] Accumulation accumulation(const Program& program);

}  // namespace millrace
