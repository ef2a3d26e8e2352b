// Signals that arrive while a thread multiplies change nothing, whatever the model, the precision
// and the threads.
#include <gtest/gtest.h>

#include "training/interrupted.hpp"

namespace millrace::testing_training {
namespace {

TEST(UnderSignals, EveryFamilyAndPrecision_SameBits) {
  const std::vector<std::string> executors = {"flow-graph", "ranks", "sequential"};
  std::size_t number = 0;
  for (const std::string& model : interrupted_models())
    for (const DType precision : {DType::F32, DType::BF16, DType::F16}) {
      const std::string& executor = executors[(number + number / 3) % executors.size()];
      expect_uninterrupted({model, precision, executor, number % 2 == 0 ? 1 : 2});
      ++number;
    }
}

}  // namespace
}  // namespace millrace::testing_training
