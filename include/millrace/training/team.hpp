// Team: everything in training that needs all ranks to agree goes through this seam: the loss, the
// gradient norm with its overflow verdict, the weights' hash. One process is a team of one; one
// process per rank puts collectives over an Endpoint behind it. A trainer looks the same on both.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "millrace/core/channel.hpp"

namespace millrace {

/// The processes that train one model together. Every member calls the same functions in the same
/// order.
/// Thread-safety: externally synchronised.
class Team {
 public:
  Team() = default;
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  virtual ~Team() = default;

  /// Names the step (evaluations: 2^63 and up) of what follows, for reports; steps ascend.
  virtual void begin_step(std::uint64_t step) = 0;

  /// Number of member processes.
  [[nodiscard]] virtual int members() const = 0;

  /// Replaces every value by its sum over the members, added in member order, so that all get the
  /// same bits. The trainer gives 0 for what it does not host; x + 0 is x, so the result does not
  /// depend on who hosts what. Values that are not finite stay so: this is also the overflow vote.
  /// Throws TransportError, which names the topic, when a member is lost.
  virtual void sum(std::span<double> values, Topic topic) = 0;

  /// What every member gave, in member order.
  [[nodiscard]] virtual std::vector<std::string> gather(const std::string& mine, Topic topic) = 0;
};

/// A team of one: this process hosts everything.
/// Thread-safety: externally synchronised.
class LocalTeam final : public Team {
 public:
  [[nodiscard]] int members() const override { return 1; }
  void begin_step(std::uint64_t) override {}
  void sum(std::span<double>, Topic) override {}
  [[nodiscard]] std::vector<std::string> gather(const std::string& mine, Topic) override {
    return {mine};
  }
};

}  // namespace millrace
