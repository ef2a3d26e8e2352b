// What the optimizer keeps, spread over copies of a pipeline: how much each has, and that nobody
// else notices.
#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/training/records.hpp"
#include "support/test_options.hpp"
#include "training/grid_matrix.hpp"

namespace millrace::testing_training {
namespace {

using testing::HasSubstr;

/// Three parameters of 10, 3 and 2 blocks of the norm, and small ones.
constexpr const char* kWideModel = "mlp:64-200-200-40-10";

struct ShardedJob {
  int copies = 4;
  OptimizerKind rule = OptimizerKind::AdamW;
  DType precision = DType::F32;
  bool is_sharded = true;
};

TestOptions sharded_options(const ShardedJob& job) {
  TestOptions options = plain_options(1, 8 / job.copies);
  options.step.accumulate_order = AccumulateOrder::Tree;
  options.step.optimizer = optimizer_defaults(job.rule);
  options.step.learning_rate.base = 0.01;
  options.step.clip_norm = 0.5;
  options.fit.batch_size = 24;
  options.fit.steps = 3;
  options.step.shard_optimizer = job.is_sharded;
  return options;
}

/// By copy.
struct ShardedRun {
  std::vector<std::string> weights;
  std::vector<std::size_t> bytes, predicted;  // of the optimizer; the latter of the largest share
};

using Look = std::function<void(Trainer&, int copy)>;

ShardedRun run_copies(const ShardedJob& job,
                      const std::string& folder = {},
                      const Look& look = {}) {
  TestOptions options = sharded_options(job);
  options.save.folder = folder;
  options.save.files = std::make_shared<Hasty>();
  ModelSpec model = parse_model(kWideModel);
  model.precision = job.precision;
  const Program program =
      generate("1f1b", {.ranks = 1, .micro_batches = options.pipeline.shape.micro_batches});
  ShardedRun run{std::vector<std::string>(static_cast<std::size_t>(job.copies)),
                 std::vector<std::size_t>(static_cast<std::size_t>(job.copies)),
                 std::vector<std::size_t>(static_cast<std::size_t>(job.copies))};
  on_ranks(job.copies, [&](Endpoint& endpoint, ProcessGroup& group) {
    const GridPosition seat(endpoint, Grid(job.copies, 1));
    Trainer trainer(rank_parts(model, {program}, options, seat, group));
    trainer.fit(first_digits(60));
    const auto copy = endpoint.rank().index();
    run.weights[copy] = trainer.weights_hash();
    run.bytes[copy] = trainer.state().optimizer_bytes();
    run.predicted[copy] = predict_optimizer_bytes(program.shape,
                                                  trainer.stages(),
                                                  make_optimizer(options.step.optimizer)->slots(),
                                                  job.is_sharded ? job.copies : 1)[0];
    if (look) look(trainer, static_cast<int>(copy));
  });
  return run;
}

/// Blocks of 4096, one parameter behind the other, cut where the copies' shares end; counted one
/// by one.
std::vector<std::size_t> elements_by_copy(int copies) {
  std::vector<std::size_t> blocks;
  for (const auto& [in, out] : {std::pair{64, 200}, {200, 200}, {200, 40}, {40, 10}})
    for (std::size_t left : {static_cast<std::size_t>(in * out), static_cast<std::size_t>(out)})
      for (; left > 0; left -= std::min<std::size_t>(left, 4096))
        blocks.push_back(std::min<std::size_t>(left, 4096));
  std::vector<std::size_t> elements;
  const std::size_t parts = static_cast<std::size_t>(copies);
  for (std::size_t copy = 0; copy < parts; ++copy) {
    elements.push_back(0);
    for (std::size_t i = blocks.size() * copy / parts; i < blocks.size() * (copy + 1) / parts; ++i)
      elements.back() += blocks[i];
  }
  return elements;
}

TEST(OptimizerShards, HoldTheirShareOfMomentsAndMasters) {
  for (const int copies : {2, 4, 8}) {
    const std::vector<std::size_t> elements = elements_by_copy(copies);
    const ShardedRun f32 = run_copies({.copies = copies});
    const ShardedRun bf16 = run_copies({.copies = copies, .precision = DType::BF16});
    const ShardedRun whole = run_copies({.copies = copies, .is_sharded = false});
    for (std::size_t copy = 0; copy < elements.size(); ++copy) {
      EXPECT_EQ(f32.bytes[copy], 2 * sizeof(float) * elements[copy]) << copies << ", " << copy;
      EXPECT_EQ(bf16.bytes[copy], 3 * sizeof(float) * elements[copy]) << copies << ", " << copy;
      EXPECT_EQ(whole.bytes[copy], 2 * sizeof(float) * elements_by_copy(1)[0]);
    }
    for (const ShardedRun& run : {f32, bf16, whole})
      EXPECT_THAT(run.predicted, testing::Each(std::ranges::max(run.bytes)));
  }
}

TEST(OptimizerShards, GiveTheBitsOfTheWhole) {
  for (const OptimizerKind rule : optimizer_kinds())
    for (const DType precision : {DType::F32, DType::BF16}) {
      const std::string expected =
          run_copies({.copies = 1, .rule = rule, .precision = precision}).weights[0];
      for (const int copies : {2, 4, 8})
        EXPECT_THAT(run_copies({copies, rule, precision}).weights, testing::Each(expected))
            << name_of(rule) << ", " << name_of(precision) << ", " << copies;
    }
}

std::string bytes_in(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::map<std::string, std::string> tensor_files(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.path().extension() == ".safetensors")
      files[entry.path().filename()] = bytes_in(entry.path());
  return files;
}

TEST(OptimizerShards, SaveTheFilesOfTheWhole) {
  for (const DType precision : {DType::F32, DType::BF16}) {
    const testing_files::Folder whole("shards_whole"), spread("shards_spread");
    run_copies({.precision = precision, .is_sharded = false}, whole.path());
    run_copies({.precision = precision}, spread.path());
    EXPECT_EQ(tensor_files(whole.path()).size(), 8U);
    EXPECT_EQ(tensor_files(spread.path()), tensor_files(whole.path()));
  }
}

TEST(OptimizerShards, AreNotReadAsIfTheyWereWhole) {
  run_copies({.copies = 2}, "", [](Trainer& trainer, int) {
    EXPECT_EQ(trainer.state().read("layers.2.weight").elements(), 200 * 40);
    try {
      (void)trainer.state().read("layers.2.weight", "first_moment");
      ADD_FAILURE() << "it is not here";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr("the first_moment of 'layers.2.weight' is spread over the copies"));
    }
  });
}

}  // namespace
}  // namespace millrace::testing_training
