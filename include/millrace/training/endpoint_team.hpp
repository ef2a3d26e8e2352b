// The team of one process per rank: agreement by collectives over an endpoint.
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "millrace/training/team.hpp"
#include "millrace/transport/collectives.hpp"

namespace millrace {

/// Every rank of the endpoint is a member. Throws TransportError when a member is lost or
/// `patience` passes in one call. Thread-safety: thread-affine, as the endpoint.
class EndpointTeam final : public Team {
 public:
  /// `endpoint` must outlive the team.
  explicit EndpointTeam(Endpoint& endpoint,
                        std::chrono::milliseconds patience = std::chrono::minutes(10));

  [[nodiscard]] int members() const override;
  void begin_step(std::uint64_t step) override;
  void sum(std::span<double> values, Topic topic) override;
  [[nodiscard]] std::vector<std::string> gather(const std::string& mine, Topic topic) override;

 private:
  [[nodiscard]] Deadline deadline() const;

  Collectives collectives_;
  std::chrono::milliseconds patience_;
};

}  // namespace millrace
