// What does saving cost the training? Steps of mlp:784-1024-1024-10 (Adam, mini-batches of 4,096)
// that save after every step, each save written and none skipped, next to the same steps that save
// nothing; and the pause of a save next to one memcpy of the state. On a tmpfs, so that no disk is
// measured.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <unistd.h>
#include <vector>

#include <benchmark/benchmark.h>

#include "millrace/core/random.hpp"
#include "millrace/training/trainer.hpp"

namespace {

using namespace millrace;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kBatch = 4096;
constexpr std::int64_t kSteps = 8;  // of an iteration

Dataset noise() {
  Dataset data =
      make_dataset("noise", Tensor(DType::F32, {kBatch, 784}), Tensor(DType::I32, {kBatch}), 10);
  const auto features = data.inputs[0].values.as<float>();
  for (std::size_t i = 0; i < features.size(); ++i)
    features[i] = static_cast<float>(random_uniform({.seed = 5}, static_cast<std::uint32_t>(i)));
  const auto targets = data.targets[0].values.as<std::int32_t>();
  for (std::size_t i = 0; i < targets.size(); ++i) targets[i] = static_cast<std::int32_t>(i % 10);
  return data;
}

/// A folder in memory, removed at the end.
class Place {
 public:
  Place() {
    namespace fs = std::filesystem;
    const fs::path root = fs::exists("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path();
    path_ = root / ("millrace-checkpoint-bench-" + std::to_string(::getpid()));
    fs::remove_all(path_);
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  ~Place() { std::filesystem::remove_all(path_); }

  [[nodiscard]] std::string path() const { return path_; }

 private:
  std::filesystem::path path_;
};

const PipelineOptions kPipeline = {.shape = {.ranks = 2, .micro_batches = 4}};

TrainerOptions options_in(const std::string& folder) {
  TrainerOptions options;
  options.step.optimizer.kind = OptimizerKind::Adam;
  options.step.learning_rate.base = 1e-4;
  options.fit.batch_size = kBatch;
  options.fit.steps = kSteps;
  options.save.folder = folder;
  if (!folder.empty()) options.save.every_steps = 1;
  return options;
}

/// Copies all that a checkpoint holds into memory of its own, at the moment at which a save would:
/// after a step, with the caches as the step left them.
class PlainCopy {
 public:
  explicit PlainCopy(const TrainingState& state) : state_(state) {
    std::size_t bytes = 0;
    visit([&](const Tensor& tensor) { bytes += tensor.bytes(); });
    to_.resize(bytes);
  }

  [[nodiscard]] double seconds() {
    const auto start = Clock::now();
    std::byte* to = to_.data();
    visit([&](const Tensor& tensor) {
      std::memcpy(to, tensor.data(), tensor.bytes());
      to += tensor.bytes();
    });
    benchmark::ClobberMemory();
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

 private:
  template <class Use>
  void visit(const Use& use) const {
    for (const std::string& name : state_.names())
      for (const std::string& part : state_.parts(name))
        if (part != "gradient") use(state_.read(name, part));
  }

  const TrainingState& state_;
  std::vector<std::byte> to_;
};

double median(std::vector<double> numbers) {
  std::ranges::sort(numbers);
  return numbers[numbers.size() / 2];
}

void count_samples(benchmark::State& state) {
  state.counters["samples_per_second"] = benchmark::Counter(
      static_cast<double>(kBatch * kSteps), benchmark::Counter::kIsIterationInvariantRate);
}

void StepsAlone(benchmark::State& state) {
  const Dataset data = noise();
  Trainer trainer(parse_model("mlp:784-1024-1024-10"), kPipeline, options_in(""));
  for (auto _ : state) trainer.fit(data);
  count_samples(state);
}

void StepsThatSave(benchmark::State& state) {
  const Dataset data = noise();
  const Place place;
  Trainer trainer(parse_model("mlp:784-1024-1024-10"), kPipeline, options_in(place.path()));
  std::int64_t saves = 0;
  trainer.on_save = [&](const SaveReport& report) {
    if (!report.fault.empty()) state.SkipWithError(report.fault.c_str());
    ++saves;
  };
  for (auto _ : state) trainer.fit(data);
  count_samples(state);
  if (saves != trainer.state().counters().mini_batches) state.SkipWithError("a save was skipped");
}

/// A save after every second step, a plain copy after the others.
void PauseOfASave(benchmark::State& state) {
  const Dataset data = noise();
  const Place place;
  TrainerOptions options = options_in(place.path());
  options.save.every_steps = 2;
  Trainer trainer(parse_model("mlp:784-1024-1024-10"), kPipeline, options);
  PlainCopy copy(trainer.state());
  std::vector<double> pauses;
  std::vector<double> copies;
  trainer.on_step = [&](const StepReport&) {
    if (trainer.state().counters().mini_batches % 2 == 1) copies.push_back(copy.seconds());
  };
  trainer.on_save = [&](const SaveReport& report) { pauses.push_back(report.pause_seconds); };
  for (auto _ : state) trainer.fit(data);
  state.counters["pause_ms"] = 1e3 * median(pauses);
  state.counters["memcpy_ms"] = 1e3 * median(copies);
  state.counters["pause_by_memcpy"] = median(pauses) / median(copies);
}

BENCHMARK(StepsAlone)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(StepsThatSave)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(PauseOfASave)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
