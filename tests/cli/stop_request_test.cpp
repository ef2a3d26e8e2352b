// A request to end: repeated at once it is the same, repeated later it is an order.
#include <chrono>
#include <csignal>
#include <thread>

#include <gtest/gtest.h>

#include "cli/train/stop_signals.hpp"

namespace millrace::cli {
namespace {

TEST(StopRequest, SignalsAtOnce_KeepTheFirst) {
  StopRequest request;
  EXPECT_EQ(request.signal(), 0);
  request.note(SIGTERM);
  request.note(SIGINT);
  request.note(SIGTERM);
  EXPECT_EQ(request.signal(), SIGTERM);
  request.forget();
  EXPECT_EQ(request.signal(), 0);
}

TEST(StopRequest, SecondSignal_EndsTheProcess) {
  const auto insist = [] {
    StopRequest request;
    request.note(SIGTERM);
    std::this_thread::sleep_for(std::chrono::milliseconds(1'100));
    request.note(SIGTERM);
  };
  EXPECT_EXIT(insist(), testing::KilledBySignal(SIGTERM), "");
}

}  // namespace
}  // namespace millrace::cli
