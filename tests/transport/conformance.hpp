// The suite that every transport passes: instantiate it with a function that makes connected
// endpoints,
//   INSTANTIATE_TEST_SUITE_P(InProcess, TransportConformance, testing::Values(TransportUnderTest{
//       "in_process", [](int world, const std::vector<ChannelDepth>& depths) { ... }}));
// The claims are in conformance_messages.cpp and conformance_groups.cpp. A transport between
// processes is also tested with each rank in a process of its own (`join`): there `connect` gives
// every process its own endpoint and null for the others, so a claim touches endpoints in
// on_every_rank and on_rank only.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/transport/endpoint.hpp"
#include "transport/peers.hpp"

namespace millrace::testing_transport {

using Endpoints = std::vector<std::unique_ptr<Endpoint>>;

/// A process of a test that an engine has started: its number, a directory that all share, and how
/// it waits for all others to have come as far.
struct EngineProcess {
  int number = 0;
  std::string directory;
  std::function<void()> together;
};

/// A name for reports and the function that connects `world` endpoints, by rank. Channels that are
/// not in `depths` are unbounded, or as deep as the transport can.
struct TransportUnderTest {
  std::string name;
  std::function<Endpoints(int world, const std::vector<ChannelDepth>& depths)> make;

  /// Instead: connects this process as `rank`, the `number`th time in this test. All ranks share
  /// `directory`.
  std::function<std::unique_ptr<Endpoint>(Rank rank,
                                          int world,
                                          const std::vector<ChannelDepth>& depths,
                                          const std::string& directory,
                                          std::uint32_t number)>
      join = {};

  /// With `join`, where no process may start others: the tests run in processes that an engine has
  /// started, more of them than any test has ranks, each of which is `places` ranks.
  std::function<EngineProcess()> process = {};
  int places = 1;

  friend std::ostream& operator<<(std::ostream& stream, const TransportUnderTest& transport) {
    return stream << transport.name;
  }
};

class TransportConformance : public testing::TestWithParam<TransportUnderTest> {
 protected:
  void SetUp() override;
  void TearDown() override;

  Endpoints connect(int world, const std::vector<ChannelDepth>& depths = {});

  /// Runs work(endpoint) for every rank at once, wherever its endpoint is, and returns when all
  /// have done it.
  void on_every_rank(Endpoints& endpoints, const std::function<void(Endpoint&)>& work);

  /// The same for one rank while all others wait.
  void on_rank(Endpoints& endpoints, Rank rank, const std::function<void(Endpoint&)>& work);

  /// A directory that all ranks share.
  [[nodiscard]] const std::string& directory() const;

 private:
  void come_together(std::size_t world);
  [[nodiscard]] std::vector<Rank> own_ranks(int world) const;

  std::optional<PrivateDirectory> directory_;  // where ranks are threads
  std::optional<Peer> peer_;                   // in a rank's process
  std::unique_ptr<Supervisor> supervisor_;     // of ranks in processes
  std::optional<EngineProcess> process_;       // of an engine
  std::uint32_t connected_ = 0;
};

/// Runs work(endpoint) on a thread per endpoint, joins them and fails the test for every exception
/// that came out. Null endpoints are left out.
void on_every_rank(Endpoints& endpoints, const std::function<void(Endpoint&)>& work);

/// Returns when the endpoint's rank waits for a message, on another thread.
void await_wait(const Endpoint& end);

/// A deadline that a healthy test never reaches.
Deadline soon();
/// How long that is.
inline constexpr std::chrono::seconds kSoon{20};

/// What the two sides agree on: bytes that follow from a number.
Tensor filled(DType dtype, const Dims& dims, int number);

/// Whether dtype, extents and every byte are equal.
testing::AssertionResult same(const Tensor& a, const Tensor& b);

MessageTag forward_tag(int micro_batch, int stage = 1, std::uint64_t step = 0);

}  // namespace millrace::testing_transport
