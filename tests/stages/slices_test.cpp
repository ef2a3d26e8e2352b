// Layers on sequences that come in slices: what a causal layer shares with later slices makes the
// same bits of them as of the whole sequence, in training, with recompute, and in evaluation.
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/stages/models.hpp"
#include "stages/layer_probe.hpp"

namespace millrace::test {
namespace {

constexpr std::int64_t kRows = 3;
constexpr std::int64_t kLength = 7;
constexpr std::int64_t kColumns = 4;

/// Positions [first, first + count) of [rows, length, columns].
Tensor cut(const Tensor& whole, std::int64_t first, std::int64_t count) {
  Tensor part(DType::F32, {kRows, count, kColumns});
  for (std::int64_t n = 0; n < kRows; ++n)
    std::copy_n(whole.as<float>().begin() + (n * kLength + first) * kColumns,
                count * kColumns,
                part.as<float>().begin() + n * count * kColumns);
  return part;
}

void paste(Tensor& whole, const Tensor& part, std::int64_t first) {
  const std::int64_t count = part.dims()[1];
  for (std::int64_t n = 0; n < kRows; ++n)
    std::copy_n(part.as<float>().begin() + n * count * kColumns,
                count * kColumns,
                whole.as<float>().begin() + (n * kLength + first) * kColumns);
}

/// No products: their bits depend on the number of rows.
ModelSpec causal_model() {
  ModelSpec model;
  model.inputs = {{DType::F32, {kSamples, kPositions, kColumns}, false}};
  model.layers = {{"activation", {{"function", "tanh"}}},
                  {"running_mean"},
                  {"dropout", {{"rate", 0.3}}},
                  {"add", {}, {{0}, {2}}},
                  {"running_mean"},
                  {"activation", {{"function", "gelu"}}},
                  {"layer_norm"}};
  return model;
}

/// The middle of the model, whose input has a gradient.
std::unique_ptr<StageModule> middle() {
  return build_stage(causal_model(), std::vector<int>{0, 1, 6, 7}, 1, 1);
}

struct Flow {
  Tensor outputs{DType::F32, {kRows, kLength, kColumns}};
  Tensor gradients{DType::F32, {kRows, kLength, kColumns}};
};

/// All slices forward, then backward from the last.
Flow run(const std::vector<std::int64_t>& lengths, bool recompute, bool training = true) {
  const auto stage = middle();
  const int slices = static_cast<int>(lengths.size());
  stage->reserve(2, slices);
  const Tensor x = drawn(DType::F32, {kRows, kLength, kColumns}, 1);
  const Tensor dy = drawn(DType::F32, {kRows, kLength, kColumns}, 2);
  StashMeter meter;
  const auto context_of = [&](int slice) {
    PassContext context = training_context();
    context.micro_batch = MicroBatch{1};
    context.slice = Slice{slice};
    context.slices = slices;
    context.first_position =
        std::accumulate(lengths.begin(), lengths.begin() + slice, std::int64_t{0});
    context.training = training;
    context.recompute_later = recompute;
    context.meter = &meter;
    return context;
  };
  Flow flow;
  for (int slice = 0; slice < slices; ++slice) {
    const PassContext context = context_of(slice);
    const std::int64_t count = lengths[static_cast<std::size_t>(slice)];
    const std::size_t before = meter.bytes;
    TensorList inputs(cut(x, context.first_position, count));
    inputs.push_back(cut(x, context.first_position, count));  // layer 3 takes it too
    paste(flow.outputs, stage->forward(context, std::move(inputs))[0], context.first_position);
    if (training) {
      EXPECT_EQ(meter.bytes - before,
                stage->stash_bytes({.samples = kRows, .positions = count}, recompute).after_forward)
          << "slice " << slice;
    }
  }
  for (int slice = slices; training && slice-- > 0;) {
    const PassContext context = context_of(slice);
    if (recompute) stage->recompute(context);
    const TensorList back = stage->backward_input(
        context,
        TensorList(cut(dy, context.first_position, lengths[static_cast<std::size_t>(slice)])));
    Tensor sum = back[0].clone();
    for (std::size_t i = 0; i < sum.as<float>().size(); ++i)
      sum.as<float>()[i] += back[1].as<float>()[i];
    paste(flow.gradients, sum, context.first_position);
    stage->backward_weight(context);
  }
  EXPECT_EQ(meter.bytes, 0U);
  EXPECT_EQ(stage->stashed_units(), 0U);
  return flow;
}

TEST(Slices, OfASequenceGiveTheBitsOfTheWhole) {
  const Flow whole = run({kLength}, false);
  for (const std::vector<std::int64_t>& lengths :
       {std::vector<std::int64_t>{4, 3}, {1, 5, 1}, {1, 1, 1, 1, 1, 1, 1}})
    for (const bool recompute : {false, true}) {
      SCOPED_TRACE(testing::PrintToString(lengths) + (recompute ? ", recompute" : ""));
      const Flow sliced = run(lengths, recompute);
      EXPECT_TRUE(same_bits(sliced.outputs, whole.outputs));
      EXPECT_TRUE(same_bits(sliced.gradients, whole.gradients));
    }
}

TEST(Slices, Evaluation_SeesEarlierOnesKeepsNothing) {
  const Flow whole = run({kLength}, false, false);
  EXPECT_TRUE(same_bits(run({2, 3, 2}, false, false).outputs, whole.outputs));
}

TEST(Slices, OfAnotherMicroBatchAreNotFound) {
  std::vector<Stash> stashes(2);
  Stash::join(stashes);
  EXPECT_EQ(&stashes[1].of_slice(Slice{0}), &stashes[0]);
  EXPECT_THROW((void)stashes[0].of_slice(Slice{2}), InvalidArgument);
}

}  // namespace
}  // namespace millrace::test
