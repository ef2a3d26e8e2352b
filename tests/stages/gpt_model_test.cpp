// Transformers by their text: what layers they have, where they are cut, and what is refused.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/stages/models.hpp"

namespace millrace::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

std::vector<std::string> kinds_of(const ModelSpec& model) {
  std::vector<std::string> kinds;
  for (const LayerSpec& layer : model.layers) kinds.push_back(layer.kind);
  return kinds;
}

TEST(GptModel, HasAttentionAndPerceptronAfterNorms) {
  const ModelSpec model = parse_model("gpt:layers=1,d=8,heads=2,context=5");
  EXPECT_THAT(kinds_of(model),
              ElementsAre("embedding",
                          "positions",
                          "layer_norm",
                          "linear",
                          "attention",
                          "linear",
                          "add",
                          "layer_norm",
                          "linear",
                          "linear",
                          "add",
                          "layer_norm",
                          "unembedding"));
  EXPECT_EQ(model.context, 5);
  EXPECT_EQ(model.output_columns(), 256);
  EXPECT_THAT(model.tied, IsEmpty());
}

TEST(GptModel, TakesEveryOption) {
  const ModelSpec model = parse_model(
      "gpt:vocabulary=60,context=5,heads=4,d=16,layers=2,kv=2,mlp=swiglu,norm=rms,"
      "pos=rotary,tied=yes,dropout=0.1");
  EXPECT_THAT(kinds_of(model), testing::Contains("dropout").Times(5));
  EXPECT_THAT(kinds_of(model), testing::Contains("rms_norm").Times(5));
  EXPECT_THAT(kinds_of(model), testing::Contains("swiglu").Times(2));
  EXPECT_THAT(kinds_of(model), testing::Not(testing::Contains("positions")));
  const auto types = infer_types(model);
  EXPECT_EQ(types.back()[0].columns(), 60);
  EXPECT_EQ(types[3][0].columns(), 16 + 2 * 2 * 4);
  const std::string head = "layers." + std::to_string(model.layer_count() - 1) + ".weight";
  EXPECT_THAT(model.tied, ElementsAre(ElementsAre("layers.0.weight", head)));
}

TEST(GptModel, IsSplitWhereOneTensorCrosses) {
  const ModelSpec model = parse_model("gpt:layers=3,d=8,heads=2,context=5");
  for (int stages = 1; stages <= 8; ++stages)
    for (const CutEdge& edge : cut_edges(model, even_boundaries(model, stages))) {
      EXPECT_EQ(edge.output, 0) << stages;
      EXPECT_EQ(edge.to, edge.from + 1) << stages;
    }
  EXPECT_EQ(even_boundaries(model, model.layer_count()).size(),
            static_cast<std::size_t>(model.layer_count()) + 1);
  std::vector<double> seconds(static_cast<std::size_t>(model.layer_count()), 1.0);
  seconds[0] = 100;
  EXPECT_THAT(balanced_boundaries(model, seconds, 2), ElementsAre(0, 2, model.layer_count()));
}

TEST(GptModel, SaysWhatDoesNotFit) {
  const struct {
    const char* text;
    const char* why;
  } faults[] = {
      {"gpt:layers=1,d=8,heads=2", "context=N is missing"},
      {"gpt:layers=1,d=8,heads=3,context=5", "d must be a multiple of heads, got 8 and 3"},
      {"gpt:layers=1,d=8,heads=4,kv=3,context=5", "heads must be a multiple of kv, got 4 and 3"},
      {"gpt:layers=1,d=6,heads=2,context=5,pos=rotary", "heads of an even number of columns"},
      {"gpt:layers=1,d=8,heads=2,context=5,norm=batch", "norm \"batch\" is neither layer nor rms"},
      {"gpt:layers=1,d=8,heads=2,context=5,layer=3",
       "unknown option \"layer\"; the nearest is layers"},
      {"gpt:layers=0,d=8,heads=2,context=5", "width \"0\" is not a number"},
      {"gpt:", "unknown option \"\""},
      {"gqt:layers=1", "known are mlp, conv, gpt"},
  };
  for (const auto& fault : faults)
    EXPECT_THAT([&] { (void)parse_model(fault.text); },
                ThrowsMessage<InvalidArgument>(HasSubstr(fault.why)))
        << fault.text;
}

}  // namespace
}  // namespace millrace::test
