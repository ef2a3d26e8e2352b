// What an inspection finds in gradients: counts by hand, the one norm of the step, and the same
// wherever the layers live.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/training/ranks.hpp"
#include "millrace/training/records.hpp"
#include "tests/training/first_digits.hpp"
#include "tests/training/on_ranks.hpp"

namespace millrace {
namespace {

using testing::AllOf;
using testing::DoubleNear;
using testing::HasSubstr;
using testing::Not;
using testing_training::first_digits;
using testing_training::kModel;
using testing_training::on_ranks;
using testing_training::plain_options;

constexpr float kInfinite = std::numeric_limits<float>::infinity();

Parameter with_gradient(const std::string& name, const std::vector<float>& gradient) {
  Parameter parameter;
  parameter.name = name;
  parameter.gradient = Tensor(DType::F32, {static_cast<std::int64_t>(gradient.size())});
  std::copy(gradient.begin(), gradient.end(), parameter.gradient.as<float>().begin());
  return parameter;
}

std::vector<LayerGradients> inspect(std::vector<Parameter>& parameters) {
  std::vector<const Parameter*> pointers;
  for (const Parameter& parameter : parameters) pointers.push_back(&parameter);
  return inspect_gradients(pointers);
}

TEST(GradientInspection, CountsByLayerNumber) {
  std::vector<Parameter> parameters;
  parameters.push_back(with_gradient("layers.10.weight", {0, 0}));
  parameters.push_back(with_gradient("layers.2.weight", {3, 0, -4}));
  parameters.push_back(with_gradient("layers.2.bias", {kInfinite, 12, std::nanf("")}));
  parameters.push_back(with_gradient("Embedding", {1}));
  const auto layers = inspect(parameters);

  ASSERT_EQ(layers.size(), 3U);
  EXPECT_EQ(layers[0].layer, "Embedding");
  EXPECT_EQ(layers[1].layer, "layers.2");
  EXPECT_EQ(layers[1].elements, 6);
  EXPECT_EQ(layers[1].zeros, 1);
  EXPECT_EQ(layers[1].not_finite, 2);
  EXPECT_EQ(layers[1].norm, 13);
  EXPECT_EQ(layers[1].largest, 12);
  EXPECT_EQ(layers[2].layer, "layers.10");
  EXPECT_EQ(layers[2].zeros, 2);
}

TEST(GradientInspection, NamesLayersWithoutOrInfiniteGradient) {
  std::vector<Parameter> parameters;
  parameters.push_back(with_gradient("layers.0.weight", {0, 0}));
  parameters.push_back(with_gradient("layers.1.weight", {1, kInfinite}));
  parameters.push_back(with_gradient("layers.2.weight", {1, 0}));
  parameters.push_back(with_gradient("layers.3.weight", {0}));
  parameters.back().frozen = true;
  const std::string text = to_string(GradientInspection{1, inspect(parameters)});

  EXPECT_THAT(text,
              AllOf(HasSubstr("gradients of step 1, before clipping\n"),
                    HasSubstr("layers.0: all 2 gradients are 0, so that it learns nothing\n"),
                    HasSubstr("layers.1: 1 of 2 gradients are not finite\n"),
                    HasSubstr("frozen\n"),
                    Not(HasSubstr("layers.2: ")),
                    Not(HasSubstr("layers.3: "))));
}

TestOptions inspecting(int ranks) {
  TestOptions options = plain_options(ranks, 4);
  options.fit.batch_size = 10;
  options.fit.epochs = 1;
  options.watch.inspect_gradients = 1;
  return options;
}

struct Seen {
  std::vector<GradientInspection> inspections;
  double norm = 0;  // of the first step
};

Seen seen(const TestOptions& options) {
  Seen all;
  Trainer trainer(parse_model(kModel), options.pipeline, options);
  trainer.on_gradients = [&](const GradientInspection& found) { all.inspections.push_back(found); };
  trainer.on_step = [&](const StepReport& report) {
    if (all.norm == 0) all.norm = report.gradient_norm;
  };
  trainer.fit(first_digits(35));
  return all;
}

double norm_of(const GradientInspection& inspection) {
  double squares = 0;
  for (const LayerGradients& layer : inspection.layers) squares += layer.norm * layer.norm;
  return std::sqrt(squares);
}

TEST(GradientInspection, SeesTheFirstStepOnceAndItsNorm) {
  for (const double scale : {1.0, 8.0}) {
    TestOptions options = inspecting(2);
    options.step.loss_scale = parse_loss_scale("static:" + std::to_string(scale));
    const Seen found = seen(options);

    ASSERT_EQ(found.inspections.size(), 1U);
    EXPECT_EQ(found.inspections[0].step, 1);
    EXPECT_THAT(norm_of(found.inspections[0]), DoubleNear(found.norm, 1e-9 * found.norm));
  }
}

TEST(GradientInspection, IsTheSameWhereverTheLayersLive) {
  const std::string expected = to_string(seen(inspecting(1)).inspections.at(0));
  EXPECT_EQ(to_string(seen(inspecting(3)).inspections.at(0)), expected);
  const ModelSpec model = parse_model(kModel);
  const TestOptions options = inspecting(3);
  const Program program = generate("1f1b", {.ranks = 3, .micro_batches = 4});
  const Dataset data = first_digits(35);
  on_ranks(3, [&](Endpoint& endpoint, ProcessGroup& group) {
    Trainer trainer(rank_parts(model, {program}, options, endpoint, group));
    int count = 0;
    trainer.on_gradients = [&](const GradientInspection& found) {
      ++count;
      EXPECT_EQ(to_string(found), expected);
    };
    trainer.fit(data);
    EXPECT_EQ(count, 1);
  });
}

}  // namespace
}  // namespace millrace
