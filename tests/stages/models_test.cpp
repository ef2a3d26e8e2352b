// Model texts and first values.
#include "millrace/stages/models.hpp"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stages/layer_probe.hpp"

namespace millrace::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::string described(const char* text) {
  const ModelSpec model = parse_model(text);
  const std::vector<int> whole{0, model.layer_count()};
  return build_stage(model, whole, 0, 1)->describe();
}

TEST(ParseModel, HiddenLinearLayers_HaveActivations) {
  EXPECT_EQ(described("mlp:64-96-10"),
            "layers.0: linear 64->96 with relu\n"
            "layers.1: linear 96->10\n"
            "softmax cross entropy\n");
}

TEST(ParseModel, OptionsAddNormBeforeAndDropoutBehind) {
  EXPECT_EQ(described("mlp:8-6-4-2,tanh,norm,dropout=0.5"),
            "layers.0: linear 8->6 with tanh\n"
            "layers.1: dropout 0.500000\n"
            "layers.2: layer norm of 6\n"
            "layers.3: linear 6->4 with tanh\n"
            "layers.4: dropout 0.500000\n"
            "layers.5: layer norm of 4\n"
            "layers.6: linear 4->2\n"
            "softmax cross entropy\n");
}

TEST(ParseModel, EqualWidths_ResidualAddsTheInput) {
  EXPECT_EQ(described("mlp:8-6-6-6-2,norm,residual"),
            "layers.0: linear 8->6 with relu\n"
            "layers.1: layer norm of 6\n"
            "layers.2: linear 6->6 with relu\n"
            "layers.3: sum of 2\n"
            "layers.4: layer norm of 6\n"
            "layers.5: linear 6->6 with relu\n"
            "layers.6: sum of 2\n"
            "layers.7: layer norm of 6\n"
            "layers.8: linear 6->2\n"
            "softmax cross entropy\n");
  const ModelSpec model = parse_model("mlp:8-6-6-6-2,norm,residual");
  EXPECT_EQ(model.layers[3].inputs, (std::vector<LayerValue>{{.layer = 0}, {.layer = 2}}));
  EXPECT_EQ(model.layers[6].inputs, (std::vector<LayerValue>{{.layer = 3}, {.layer = 5}}));
}

TEST(ModelSpec, FaultsAreNamed) {
  const auto refused = [](std::vector<LayerSpec> layers, const char* why) {
    ModelSpec model{.inputs = {{DType::F32, {kSamples, 4}, false}}, .layers = std::move(layers)};
    EXPECT_THAT([&] { (void)infer_types(model); }, ThrowsMessage<InvalidArgument>(HasSubstr(why)));
  };
  refused({}, "at least 1 layer");
  refused({{"liner", {{"out", 3}}}}, "unknown kind of layer 'liner'; the nearest of activation, ");
  refused({{"liner", {{"out", 3}}}}, "is 'linear'");
  refused({{"linear", {{"uot", 3}}}}, "layers.0 (linear): unknown setting 'uot'; the nearest of");
  refused({{"linear"}}, "layers.0 (linear): the setting 'out' must be given: an integer");
  refused({{"linear", {{"out", "3"}}}}, "the setting 'out' must be an integer");
  refused({{"linear", {{"out", 0}}}}, "at least 1 input and 1 output column");
  refused({{"dropout", {{"rate", 2}}}}, "the rate must be from 0 to below 1");
  refused({{"add", {}, {{0}, {}}}},
          "layers.0 takes output 0 of layers.0, which does not lie before");
  refused({{"add", {}, {{.index = 1}, {}}}}, "layers.0 takes input 1 of the model; there are 1");
  refused({{"linear", {{"out", 3}}}, {"add", {}, {{0, 1}, {0}}}},
          "layers.1 takes output 1 of layers.0; there are 1");
  refused({{"linear", {{"out", 3}}}, {"add", {}, {{}, {0}}}},
          "layers.1: sum of 2 takes 2 tensors of one shape in f32, got f32 [samples, 4], "
          "f32 [samples, 3]");
  refused({{"embedding", {{"rows", 3}, {"columns", 2}}}}, "takes i32 ids, got f32 [samples, 4]");
}

TEST(ModelSpec, CustomKinds_JoinTheBuiltIn) {
  ModelSpec model{.inputs = {{DType::F32, {kSamples, 4}, false}}, .layers = {{"twice"}}};
  model.kinds.push_back(
      {"twice",
       {},
       [](const LayerSettings&, std::span<const TensorType> inputs, const auto& place) {
         return build_layer({"linear", {{"out", 2 * inputs[0].columns()}}}, inputs, place);
       }});
  EXPECT_EQ(model.output_columns(), 8);
  EXPECT_EQ(build_stages(model, std::vector<int>{0, 1}, 1)[0]->describe(),
            "layers.0: linear 4->8\nsoftmax cross entropy\n");
}

TEST(ParseModel, Errors_NameTextAndAllowedForm) {
  const struct {
    const char* text;
    const char* why;
  } faults[] = {
      {"", "unknown kind of model"},
      {"mp:3-4", "unknown kind of model"},
      {"mlp:", "width \"\""},
      {"mlp:64", "at least two widths"},
      {"mlp:64-0-10", "width \"0\""},
      {"mlp:64--10", "width \"\""},
      {"mlp:64-9x-10", "width \"9x\""},
      {"mlp:64-99999999999999999999-10", "width \"99999999999999999999\""},
      {"mlp:64-16777217", "width \"16777217\""},
      {"mlp:64-10,selu", "unknown option \"selu\""},
      {"mlp:64-10,norm=group", "unknown norm \"norm=group\""},
      {"mlp:64-10,dropout=1", "dropout \"1\""},
      {"mlp:64-10,dropout=-0.1", "dropout \"-0.1\""},
      {"mlp:64-10,dropout=nan", "dropout \"nan\""},
  };
  for (const auto& fault : faults)
    EXPECT_THAT(
        [&] { (void)parse_model(fault.text); },
        ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("\"" + std::string(fault.text) + "\""),
                                             HasSubstr(fault.why),
                                             HasSubstr("the form is mlp:IN-HIDDEN-...-OUT"))));
}

TEST(ParseModel, ReadsResidualNetworksOfImages) {
  const ModelSpec model = parse_model("conv:8x8x1-4-6-10,tanh,norm=group,dropout=0.1");
  EXPECT_EQ(model.input_columns(), 64);
  EXPECT_EQ(model.output_columns(), 10);
  const auto stage = build_stages(model, std::vector<int>{0, model.layer_count()}, 1);
  EXPECT_EQ(stage[0]->describe(),
            "layers.0: reshape 64->8x8x1\n"
            "layers.1: convolution 8x8x1->8x8x4 by 3x3\n"
            "layers.2: group norm of 8x8x4 in 4 groups\n"
            "layers.3: tanh of 4\n"
            "layers.4: convolution 8x8x4->8x8x4 by 3x3\n"
            "layers.5: group norm of 8x8x4 in 4 groups\n"
            "layers.6: tanh of 4\n"
            "layers.7: convolution 8x8x4->8x8x4 by 3x3\n"
            "layers.8: group norm of 8x8x4 in 4 groups\n"
            "layers.9: sum of 2\n"
            "layers.10: tanh of 4\n"
            "layers.11: convolution 8x8x4->4x4x6 by 3x3\n"
            "layers.12: group norm of 4x4x6 in 2 groups\n"
            "layers.13: tanh of 6\n"
            "layers.14: convolution 4x4x6->4x4x6 by 3x3\n"
            "layers.15: group norm of 4x4x6 in 2 groups\n"
            "layers.16: convolution 8x8x4->4x4x6 by 1x1\n"
            "layers.17: group norm of 4x4x6 in 2 groups\n"
            "layers.18: sum of 2\n"
            "layers.19: tanh of 6\n"
            "layers.20: average pooling 4x4x6->1x1x6\n"
            "layers.21: reshape 1x1x6->6\n"
            "layers.22: dropout 0.100000\n"
            "layers.23: linear 6->10\n"
            "softmax cross entropy\n");
  EXPECT_EQ(model.layers[9].inputs, (std::vector<LayerValue>{{3}, {8}}));
  EXPECT_EQ(model.layers[18].inputs, (std::vector<LayerValue>{{17}, {15}}));
}

TEST(ParseModel, OfImagesSaysWhatIsWrong) {
  const struct {
    const char* text;
    const char* why;
  } faults[] = {
      {"cnn:3-4", "unknown kind of model; known are mlp, conv"},
      {"conv:", "\"\" is not an image"},
      {"conv:8x8-4-10", "\"8x8\" is not an image"},
      {"conv:8x8x1-10", "at least one block"},
      {"conv:8x0x1-4-10", "width \"0\""},
      {"conv:8x8x1-4-10,norm=layer", "unknown norm \"layer\"; known are batch, group, none"},
      {"conv:8x8x1-4-10,residual", "unknown option \"residual\""},
  };
  for (const auto& fault : faults)
    EXPECT_THAT(
        [&] { (void)parse_model(fault.text); },
        ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("\"" + std::string(fault.text) + "\""),
                                             HasSubstr(fault.why),
                                             HasSubstr("the form is conv:HEIGHTxWIDTH"))));
}

TEST(BuildStages, EveryPartition_SameNamesAndBits) {
  const ModelSpec model = parse_model("mlp:9-8-7-6-5,norm");
  const auto whole = build_stages(model, std::vector<int>{0, 7}, 5);
  const auto expected = whole[0]->parameters();
  for (const std::vector<int>& cut : {std::vector<int>{0, 3, 7}, {0, 1, 2, 3, 4, 5, 6, 7}}) {
    std::size_t at = 0;
    for (const auto& stage : build_stages(model, cut, 5))
      for (const Parameter* parameter : stage->parameters()) {
        EXPECT_EQ(parameter->name, expected[at]->name);
        EXPECT_TRUE(same_bits(parameter->value, expected[at]->value)) << parameter->name;
        ++at;
      }
    EXPECT_EQ(at, expected.size());
  }
  EXPECT_EQ(expected.back()->name, "layers.6.bias");
  EXPECT_EQ(expected[0]->name, "layers.0.weight");
}

TEST(BuildStages, InitialValues_FillIntervalBySeed) {
  const ModelSpec model = parse_model("mlp:96-200-100");
  const auto one = build_stages(model, std::vector<int>{0, 2}, 1);
  const auto two = build_stages(model, std::vector<int>{0, 2}, 2);
  const double bounds[] = {std::sqrt(6.0 / 96), std::sqrt(6.0 / 300)};
  for (std::size_t k = 0; k < 2; ++k) {
    const Parameter& weight = *one[0]->parameters()[2 * k];
    double largest = 0;
    double squares = 0;
    for (const float w : weight.value.as<float>()) {
      largest = std::max(largest, std::abs(static_cast<double>(w)));
      squares += static_cast<double>(w) * static_cast<double>(w);
    }
    const double variance = squares / static_cast<double>(weight.value.elements());
    EXPECT_LE(largest, bounds[k] * (1 + 1e-6));
    EXPECT_GT(largest, bounds[k] * 0.999);
    EXPECT_NEAR(variance / (bounds[k] * bounds[k] / 3), 1, 0.05);
    EXPECT_FALSE(same_bits(weight.value, two[0]->parameters()[2 * k]->value));
    EXPECT_TRUE(weight.decays);
    EXPECT_FALSE(one[0]->parameters()[2 * k + 1]->decays);
  }
}

TEST(BuildStages, WrongPartitions_AreRejected) {
  const ModelSpec model = parse_model("mlp:4-4-4");
  const auto stages = build_stages(model, std::vector<int>{0, 1, 2}, 1);
  EXPECT_EQ(stages[0]->loss(), nullptr);
  EXPECT_NE(stages[1]->loss(), nullptr);
  EXPECT_THROW((void)build_stages(model, std::vector<int>{0, 3}, 1), InvalidArgument);
  EXPECT_THROW((void)build_stage(model, std::vector<int>{0, 2}, 1, 1), InvalidArgument);
}

}  // namespace
}  // namespace millrace::test
