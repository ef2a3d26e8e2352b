// A rank's threads are an arena of oneTBB: a thread that waits in it for the blocks of its pass can
// take up no work but these.
#include <algorithm>
#include <string>

#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include "millrace/core/error.hpp"
#include "run/executors.hpp"

namespace millrace::run {
namespace {

/// What oneTBB would give; it complains aloud of who asks for more.
int most_threads() {
  using Control = oneapi::tbb::global_control;
  return static_cast<int>(Control::active_value(Control::max_allowed_parallelism));
}

class ArenaWorkers final : public Workers {
 public:
  explicit ArenaWorkers(int threads) : arena_(std::min(threads, most_threads())) {}

  void run(std::int64_t blocks, const std::function<void(std::int64_t)>& body) override {
    arena_.execute([&] {
      oneapi::tbb::parallel_for(std::int64_t{0}, blocks, body, oneapi::tbb::simple_partitioner());
    });
  }

 private:
  oneapi::tbb::task_arena arena_;
};

}  // namespace

std::unique_ptr<Workers> make_workers(int threads) {
  require(threads >= 1 && threads <= 1024,
          "a rank has 1 to 1024 threads, not " + std::to_string(threads));
  if (threads == 1) return nullptr;
  return std::make_unique<ArenaWorkers>(threads);
}

}  // namespace millrace::run
