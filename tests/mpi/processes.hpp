// The processes of mpirun, as the tests see them: who this is, and how all of them come together by
// other means than what is tested.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "transport/conformance.hpp"

namespace millrace::testing_mpi {

/// Where every process adds one, and waits until all have.
/// Thread-safety: thread-affine.
class Gate {
 public:
  /// `path` names a file that all processes share. Throws std::system_error.
  Gate(const std::string& path, int processes);
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  ~Gate();

  void pass();

 private:
  std::atomic<std::uint32_t>* came_ = nullptr;  // in memory of all
  std::uint32_t processes_;
  std::uint32_t passed_ = 0;
};

/// This process, by the variables of mpirun and MILLRACE_TEST_DIRECTORY. Every test begins by
/// asking for it, on one thread.
[[nodiscard]] testing_transport::EngineProcess this_process();

/// How many tests have begun so, the same in all processes.
[[nodiscard]] std::uint32_t tests_begun();

/// How many processes there are.
[[nodiscard]] int process_count();

}  // namespace millrace::testing_mpi
