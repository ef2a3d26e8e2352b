// How far residual networks come when they train for long: minutes that CI has not.
#include <gtest/gtest.h>

#include "training/residual_network.hpp"

namespace millrace::testing_training {
namespace {

TEST(ResidualNetworkSoak, ReachesTheAccuracyOfItsKind) {
  EXPECT_GE(accuracy_of_residual_networks(5, 40), 0.985);
}

}  // namespace
}  // namespace millrace::testing_training
