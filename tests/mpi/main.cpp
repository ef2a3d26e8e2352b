// Runs the tests of MPI in a process of mpirun. The first one alone prints successes.
#include <gtest/gtest.h>

#include "mpi/processes.hpp"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (!GTEST_FLAG_GET(list_tests) && millrace::testing_mpi::this_process().number != 0)
    GTEST_FLAG_SET(brief, true);
  return RUN_ALL_TESTS();
}
