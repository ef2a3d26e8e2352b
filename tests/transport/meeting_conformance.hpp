// What every backend's listener must do for a rendezvous: instantiate it with a
// function that makes the listeners of all ranks of a world,
//   INSTANTIATE_TEST_SUITE_P(InProcess, MeetingConformance,
//   testing::Values(ListenersUnderTest{...}));
// The claims are in meeting_conformance.cpp; what only sockets can suffer is in
// rendezvous_test.cpp.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/transport/listener.hpp"
#include "millrace/transport/private_directory.hpp"

namespace millrace::testing_transport {

/// Listeners of all ranks of a world, and where they meet.
struct Gathering {
  std::vector<std::unique_ptr<Listener>> listeners;
  std::string url;
};

/// `listen` may use the directory for what the ranks share.
struct ListenersUnderTest {
  std::string name;
  std::function<Gathering(int world, const std::string& directory)> listen;

  friend std::ostream& operator<<(std::ostream& stream, const ListenersUnderTest& listeners) {
    return stream << listeners.name;
  }
};

class MeetingConformance : public testing::TestWithParam<ListenersUnderTest> {
 protected:
  MeetingConformance();

  /// Has all ranks meet, `fields` by rank; what each of them met with, empty where a message went
  /// round.
  static std::vector<std::string> meet_all(
      Gathering& all,
      const std::function<HelloFields(int)>& fields,
      std::chrono::milliseconds patience = std::chrono::seconds(20));

  [[nodiscard]] Gathering listen(int world) const {
    return GetParam().listen(world, directory_.path());
  }

 private:
  PrivateDirectory directory_;
};

}  // namespace millrace::testing_transport
