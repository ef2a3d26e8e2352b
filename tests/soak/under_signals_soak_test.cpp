// Every family, precision, executor and number of threads, interrupted for longer.
#include <gtest/gtest.h>

#include "training/interrupted.hpp"

namespace millrace::testing_training {
namespace {

TEST(UnderSignalsSoak, EveryTraining_HasQuietBits) {
  for (const std::string& model : interrupted_models())
    for (const DType precision : {DType::F32, DType::BF16, DType::F16})
      for (const char* executor : {"sequential", "flow-graph", "ranks"})
        for (const int threads : {1, 2, 3})
          expect_uninterrupted({model, precision, executor, threads, 60});
}

}  // namespace
}  // namespace millrace::testing_training
