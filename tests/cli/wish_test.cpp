// A wish to end: repeated at once it is the same, repeated later it is an order.
#include "cli/train/wish.hpp"

#include <chrono>
#include <csignal>
#include <thread>

#include <gtest/gtest.h>

namespace millrace::cli {
namespace {

TEST(Wish, IsTheFirstSignalHoweverOftenOneComesAtOnce) {
  Wish wish;
  EXPECT_EQ(wish.signal(), 0);
  wish.note(SIGTERM);
  wish.note(SIGINT);
  wish.note(SIGTERM);
  EXPECT_EQ(wish.signal(), SIGTERM);
  wish.forget();
  EXPECT_EQ(wish.signal(), 0);
}

TEST(Wish, EndsTheProcessWhereItComesAgainASecondLater) {
  const auto insist = [] {
    Wish wish;
    wish.note(SIGTERM);
    std::this_thread::sleep_for(std::chrono::milliseconds(1'100));
    wish.note(SIGTERM);
  };
  EXPECT_EXIT(insist(), testing::KilledBySignal(SIGTERM), "");
}

}  // namespace
}  // namespace millrace::cli
