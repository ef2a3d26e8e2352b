// The loader: the same mini-batches in the same order whatever the workers do, and no thread left.
#include "millrace/training/loader.hpp"

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/core/error.hpp"

namespace millrace {
namespace {

/// n samples of one feature, which is the sample's number; so is its label.
Dataset numbered(std::int64_t n) {
  Dataset data = make_dataset("numbered", Tensor(DType::F32, {n, 1}), Tensor(DType::I32, {n}), n);
  for (std::int64_t i = 0; i < n; ++i) {
    data.inputs[0].values.as<float>()[static_cast<std::size_t>(i)] = static_cast<float>(i);
    data.targets[0].values.as<std::int32_t>()[static_cast<std::size_t>(i)] =
        static_cast<std::int32_t>(i);
  }
  return data;
}

/// The samples of a batch in order, read through its micro-batches.
std::vector<std::int32_t> samples_of(Batch& batch) {
  std::vector<std::int32_t> all;
  for (int i = 0; i < batch.micro_batches(); ++i) {
    const Unit unit{MicroBatch{i}, Slice{0}};
    const TensorList inputs = batch.inputs(unit);
    const TensorList targets = batch.targets(unit);
    EXPECT_EQ(batch.first_sample(unit), static_cast<std::int64_t>(all.size()));
    EXPECT_EQ(inputs[0].rows(), batch.samples(MicroBatch{i}));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(inputs[0].data()) % kAlignment, 0U);
    for (std::size_t row = 0; row < static_cast<std::size_t>(inputs[0].rows()); ++row) {
      all.push_back(targets[0].as<std::int32_t>()[row]);
      EXPECT_EQ(inputs[0].as<float>()[row], static_cast<float>(all.back()));
    }
  }
  return all;
}

// A loader reads its data set for as long as it lives.
static_assert(std::is_constructible_v<Loader, const Dataset&, LoaderOptions>);
static_assert(!std::is_constructible_v<Loader, Dataset, LoaderOptions>);

Dataset of_dims(const Dims& dims) {
  Dataset data = make_dataset("of dims", Tensor(DType::F32, dims), Tensor(DType::I32, {dims[0]}));
  for (std::size_t i = 0; i < data.inputs[0].values.as<float>().size(); ++i)
    data.inputs[0].values.as<float>()[i] = static_cast<float>(i);
  data.targets[0].values.fill_zero();
  return data;
}

TEST(Batch, FilledAgain_HasTheNewExtents) {
  // All have 64 columns.
  const std::vector<Dims> all = {{6, 64}, {6, 8, 8}, {6, 4, 16}, {6, 16, 4}, {6, 2, 4, 8}};
  Batch batch;
  for (const Dims& before : all)
    for (const Dims& after : all) {
      batch.fill(of_dims(before), std::vector<std::int32_t>{0, 1, 2, 3, 4, 5}, 2);
      batch.fill(of_dims(after), std::vector<std::int32_t>{5, 1}, 2);
      const TensorList inputs = batch.inputs({MicroBatch{0}, Slice{0}});

      Dims wanted = after;
      *wanted.begin() = 1;
      EXPECT_EQ(inputs[0].dims(), wanted) << to_string(before) << " then " << to_string(after);
      EXPECT_EQ(inputs[0].as<float>()[3], 5 * 64 + 3);
    }
}

TEST(Batch, OfDataWithoutTargetsOrWithoutSamplesHasNone) {
  Dataset data = of_dims({3, 4});
  data.targets.clear();
  Batch batch(data, 2);
  EXPECT_EQ(batch.inputs({MicroBatch{1}, Slice{0}})[0].as<float>()[0], 8);
  EXPECT_TRUE(batch.targets({MicroBatch{1}, Slice{0}}).empty());
  EXPECT_EQ(select_rows(data, {2}).inputs[0].values.as<float>()[0], 8);

  const Dataset nothing = of_dims({0, 4});
  batch.fill(nothing, {}, 2);
  EXPECT_EQ(batch.samples(), 0);
  EXPECT_EQ(batch.inputs({MicroBatch{1}, Slice{0}})[0].rows(), 0);
  EXPECT_EQ(select_rows(nothing, {}).size(), 0);
  EXPECT_THROW((void)select_rows(nothing, {0}), InvalidArgument);
}

TEST(Batch, RefusesTargetsForAnotherNumberOfSamples) {
  Dataset data = of_dims({4, 4});
  data.targets[0].values = Tensor(DType::I32, {3});
  EXPECT_THROW(Batch(data, 2), InvalidArgument);
}

TEST(MicroBatches, DifferByAtMostOneAndAddUp) {
  for (std::int64_t n = 0; n < 40; ++n)
    for (int m = 1; m < 12; ++m) {
      std::int64_t sum = 0;
      for (const std::int64_t size : micro_batch_sizes(n, m)) {
        EXPECT_TRUE(size == n / m || size == n / m + 1);
        sum += size;
      }
      EXPECT_EQ(sum, n);
    }
  EXPECT_THROW((void)micro_batch_sizes(4, 0), InvalidArgument);
}

TEST(Loader, AnyWorkers_SamePermutations) {
  const Dataset data = numbered(23);
  for (const int workers : {1, 2, 5})
    for (const int ahead : {1, 3}) {
      Loader loader(
          data,
          {.batch_size = 5, .micro_batches = 3, .seed = 9, .workers = workers, .ahead = ahead});
      ASSERT_EQ(loader.batches_per_epoch(), 5);
      for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
        std::vector<std::int32_t> seen;
        for (std::int64_t number = 0; number < 5; ++number) {
          Batch& batch = loader.next();
          EXPECT_EQ(batch.epoch, epoch);
          EXPECT_EQ(batch.number, number);
          for (const std::int32_t sample : samples_of(batch)) seen.push_back(sample);
        }
        EXPECT_EQ(seen, shuffled_order(23, 9, static_cast<std::uint64_t>(epoch)));
      }
    }
}

TEST(Loader, DropsTheIncompleteMiniBatchOnRequest) {
  const Dataset data = numbered(23);
  Loader loader(data, {.batch_size = 5, .micro_batches = 2, .last_batch = LastBatch::Drop});

  EXPECT_EQ(loader.batches_per_epoch(), 4);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(loader.next().samples(), 5);
}

TEST(Loader, BeginsWhereASavedRunStopped) {
  const Dataset data = numbered(23);
  const LoaderOptions options{.batch_size = 5, .micro_batches = 2, .seed = 4};
  Loader whole(data, options);
  for (int i = 0; i < 5 + 3; ++i) (void)whole.next();
  EXPECT_EQ(whole.position(), (DataPosition{1, 3}));
  Loader rest(data, options);
  EXPECT_EQ(rest.position(), DataPosition());
  (void)rest.next();
  rest.seek(whole.position());

  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(samples_of(rest.next()), samples_of(whole.next()));
    EXPECT_EQ(rest.position(), whole.position());
  }
  EXPECT_THROW(rest.seek({.epoch = -1}), InvalidArgument);
  EXPECT_THROW(rest.seek({.batch = 5}), InvalidArgument);
  EXPECT_EQ(samples_of(rest.next()), samples_of(whole.next()));
}

std::ptrdiff_t threads_of_this_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

/// A joined thread stays in the list for a moment.
bool threads_become(std::ptrdiff_t count) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (threads_of_this_process() != count && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  return threads_of_this_process() == count;
}

TEST(Loader, StopsWithBatchesWaitingAndLeavesNoThread) {
  const Dataset data = numbered(10);
  const std::ptrdiff_t before = threads_of_this_process();
  for (int i = 0; i < 20; ++i) {
    Loader loader(data, {.batch_size = 3, .micro_batches = 1, .workers = 3, .ahead = 4});
    EXPECT_TRUE(threads_become(before + 3));
    if (i % 2 == 0) (void)loader.next();
  }
  EXPECT_TRUE(threads_become(before));
}

TEST(Loader, RefusesWhatIsOutOfRange) {
  const Dataset data = numbered(10);

  EXPECT_THROW(Loader(data, {.batch_size = 0}), InvalidArgument);
  EXPECT_THROW(Loader(data, {.micro_batches = 0}), InvalidArgument);
  EXPECT_THROW(Loader(data, {.workers = 0}), InvalidArgument);
  EXPECT_THROW(Loader(data, {.ahead = 0}), InvalidArgument);
  EXPECT_THROW(Loader(data, {.batch_size = 11, .last_batch = LastBatch::Drop}), InvalidArgument);
  const Dataset nothing;
  EXPECT_THROW(Loader(nothing, LoaderOptions()), InvalidArgument);
}

}  // namespace
}  // namespace millrace
