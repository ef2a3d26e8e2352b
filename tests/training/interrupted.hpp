// Trainings whose threads are interrupted by signals all the time, whichever thread computes.
#pragma once

#include <chrono>
#include <csignal>
#include <filesystem>
#include <ostream>
#include <string>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/training/dataset.hpp"
#include "millrace/training/trainer.hpp"
#include "support/test_options.hpp"

namespace millrace::testing_training {

/// Sends SIGALRM, with a handler that does nothing, to every thread of the process but its own,
/// five thousand times a second.
class Interruptions {
 public:
  Interruptions() {
    struct sigaction action {};
    action.sa_handler = [](int) {};
    action.sa_flags = SA_RESTART;
    ::sigaction(SIGALRM, &action, nullptr);  // for good: some may be pending at the end
    thread_ = std::jthread([](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        interrupt_all();
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    });
  }
  Interruptions(const Interruptions&) = delete;
  Interruptions& operator=(const Interruptions&) = delete;
  ~Interruptions() = default;

 private:
  static void interrupt_all() {
    for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task"))
      if (const pid_t number = std::stoi(thread.path().filename()); number != ::gettid())
        ::syscall(SYS_tgkill, ::getpid(), number, SIGALRM);
  }

  std::jthread thread_;
};

struct InterruptedCase {
  std::string model;
  DType precision = DType::F32;
  std::string executor;
  int threads = 1;
  int steps = 6;

  friend std::ostream& operator<<(std::ostream& out, const InterruptedCase& of) {
    return out << of.model << ", " << name_of(of.precision) << ", " << of.executor << ", "
               << of.threads << " threads";
  }
};

/// A model of each family, so wide that several threads share a product.
inline std::vector<std::string> interrupted_models() {
  return {"mlp:64-256-256-10",
          "mlp:64-256-256-10,norm,residual",
          "conv:8x8x1-16-32-10",
          "gpt:layers=1,d=64,heads=4,context=64"};
}

inline std::string hash_of(const InterruptedCase& of) {
  static const Dataset text =
      text_samples("text", built_in_text().substr(0, 100'000), {.positions = 64}).train;
  const bool reads = of.model.starts_with("gpt:");
  ModelSpec model = parse_model(
      of.model + (reads ? ",vocabulary=" + std::to_string(text.classes) : std::string()));
  model.precision = of.precision;
  TestOptions options;
  options.pipeline.shape.ranks = 2;
  options.pipeline.shape.micro_batches = 2;
  options.fit.batch_size = reads ? 32 : 512;
  options.run.executor = of.executor;
  options.run.executor_options.threads_per_rank = of.threads;
  options.fit.steps = of.steps;
  Trainer trainer(model, options.pipeline, options);
  if (reads)
    trainer.fit(text);
  else
    trainer.fit(digits());
  return trainer.weights_hash();
}

/// The training with and without interruptions has the same weights.
inline void expect_uninterrupted(const InterruptedCase& of) {
  const std::string quiet = hash_of(of);
  const Interruptions interruptions;
  EXPECT_EQ(hash_of(of), quiet) << of;
}

}  // namespace millrace::testing_training
