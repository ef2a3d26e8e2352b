// The suite that every transport passes: instantiate it with a function that makes connected
// endpoints,
//   INSTANTIATE_TEST_SUITE_P(InProcess, TransportConformance, testing::Values(TransportUnderTest{
//       "in_process", [](int world, const std::vector<ChannelDepth>& depths) { ... }}));
// The claims are in conformance.cpp (messages) and conformance_collectives.cpp.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/transport/endpoint.hpp"

namespace millrace::testing_transport {

using Endpoints = std::vector<std::unique_ptr<Endpoint>>;

/// A name for reports and the function that connects `world` endpoints, by rank. Channels that are
/// not in `depths` are unbounded, or as deep as the transport can.
struct TransportUnderTest {
  std::string name;
  std::function<Endpoints(int world, const std::vector<ChannelDepth>& depths)> make;

  friend std::ostream& operator<<(std::ostream& stream, const TransportUnderTest& transport) {
    return stream << transport.name;
  }
};

class TransportConformance : public testing::TestWithParam<TransportUnderTest> {
 protected:
  static Endpoints connect(int world, const std::vector<ChannelDepth>& depths = {}) {
    return GetParam().make(world, depths);
  }
};

/// Runs work(endpoint) on a thread per endpoint, joins them and fails the test for every exception
/// that came out.
void on_every_rank(Endpoints& endpoints, const std::function<void(Endpoint&)>& work);

/// A deadline that a healthy test never reaches.
Deadline soon();

/// What the two sides agree on: bytes that follow from a number.
Tensor filled(DType dtype, const Dims& dims, int number);

/// Whether dtype, extents and every byte are equal.
testing::AssertionResult same(const Tensor& a, const Tensor& b);

MessageTag forward_tag(int micro_batch, int stage = 1, std::uint64_t step = 0);

}  // namespace millrace::testing_transport
