#include "mpi/processes.hpp"

#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdexcept>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <climits>

namespace millrace::testing_mpi {

namespace {

using Word = std::atomic<std::uint32_t>;

std::string variable(const char* name) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no thread changes the environment
  const char* text = std::getenv(name);
  return text == nullptr ? std::string() : text;
}

/// Of Open MPI, or of MPICH.
int number_of(const char* open_mpi, const char* mpich) {
  const std::string text = variable(open_mpi) + variable(mpich);
  if (text.empty())
    throw std::runtime_error("these tests are started by mpirun: tests/engines/mpi.sh");
  return std::stoi(text);
}

std::uint32_t tests = 0;

void note_test() {
  static std::string last;
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  if (test == nullptr) return;
  const std::string name = std::string(test->test_suite_name()) + "." + test->name();
  if (std::exchange(last, name) != name) ++tests;
}

long futex(Word* word, int operation, std::uint32_t value) {
  return ::syscall(SYS_futex, word, operation, value, nullptr, nullptr, 0);
}

}  // namespace

Gate::Gate(const std::string& path, int processes)
    : processes_(static_cast<std::uint32_t>(processes)) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || ::ftruncate(file, sizeof(Word)) != 0)
    throw std::system_error(errno, std::generic_category(), path);
  void* memory = ::mmap(nullptr, sizeof(Word), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category(), path);
  came_ = static_cast<Word*>(memory);  // zeros of a new file
}

Gate::~Gate() {
  ::munmap(came_, sizeof(Word));
}

void Gate::pass() {
  const std::uint32_t all = ++passed_ * processes_;
  if (came_->fetch_add(1) + 1 == all) {
    futex(came_, FUTEX_WAKE, INT_MAX);
    return;
  }
  for (std::uint32_t now = came_->load(); now < all; now = came_->load())
    futex(came_, FUTEX_WAIT, now);
}

int process_count() {
  return number_of("OMPI_COMM_WORLD_SIZE", "PMI_SIZE");
}

std::uint32_t tests_begun() {
  return tests;
}

testing_transport::EngineProcess this_process() {
  note_test();
  const std::string directory = variable("MILLRACE_TEST_DIRECTORY");
  static Gate gate(directory + "/gate", process_count());
  return {number_of("OMPI_COMM_WORLD_RANK", "PMI_RANK"), directory, [] { gate.pass(); }};
}

}  // namespace millrace::testing_mpi
