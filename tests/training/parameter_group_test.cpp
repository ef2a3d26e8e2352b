// Parameters with settings of their own: what a group changes, which one decides, what is refused.
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/training/first_digits.hpp"

namespace millrace {
namespace {

using testing::HasSubstr;
using testing_training::first_digits;
using testing_training::kModel;
using testing_training::plain_options;

using NamedValues = std::map<std::string, std::vector<float>>;

NamedValues values_of(const Trainer& trainer) {
  NamedValues values;
  for (const Parameter* parameter : trainer.state().parameters()) {
    const auto span = parameter->value.as<float>();
    values[parameter->name] = {span.begin(), span.end()};
  }
  return values;
}

/// NamedValues after a step with these groups and, as a plain setting of all, without.
struct Outcome {
  NamedValues before, after;
};

Outcome step_with(TestOptions options, const std::vector<std::string>& groups) {
  for (const std::string& text : groups)
    options.step.parameters.push_back(parse_parameter_group(text));
  Trainer trainer(parse_model(kModel), options.pipeline, options);
  Outcome outcome{.before = values_of(trainer), .after = {}};
  Batch batch(first_digits(20), 4);
  trainer.step(batch);
  outcome.after = values_of(trainer);
  return outcome;
}

TEST(ParameterGroup, SetsOnlyItsSettings) {
  TestOptions options = plain_options(3, 4);
  options.step.optimizer.weight_decay = 0.25;
  const Outcome mixed = step_with(
      options, {"layers.0.*:lr=0.25", "layers.1.*:weight-decay=0", "layers.2.bias:frozen"});
  const Outcome plain = step_with(options, {});
  options.step.learning_rate.base /= 4;
  const Outcome slower = step_with(options, {});
  options.step.learning_rate.base *= 4;
  options.step.optimizer.weight_decay = 0;
  const Outcome undecayed = step_with(options, {});

  for (const char* name : {"layers.0.weight", "layers.0.bias"})
    EXPECT_EQ(mixed.after.at(name), slower.after.at(name)) << name;
  for (const char* name : {"layers.1.weight", "layers.1.bias"})
    EXPECT_EQ(mixed.after.at(name), undecayed.after.at(name)) << name;
  EXPECT_EQ(mixed.after.at("layers.2.weight"), plain.after.at("layers.2.weight"));
  EXPECT_EQ(mixed.after.at("layers.2.bias"), mixed.before.at("layers.2.bias"));
  EXPECT_NE(plain.after.at("layers.0.weight"), slower.after.at("layers.0.weight"));
  EXPECT_NE(plain.after.at("layers.1.weight"), undecayed.after.at("layers.1.weight"));
}

TEST(ParameterGroup, OfAWeightDecayLeavesBiasesWithoutOne) {
  TestOptions options = plain_options(3, 4);
  const Outcome plain = step_with(options, {});
  const Outcome decayed = step_with(options, {"*:weight-decay=0.5"});
  EXPECT_EQ(decayed.after.at("layers.1.bias"), plain.after.at("layers.1.bias"));
  EXPECT_NE(decayed.after.at("layers.1.weight"), plain.after.at("layers.1.weight"));
}

TEST(ParameterGroup, ThatComesLastDecidesWhatItSays) {
  TestOptions options = plain_options(3, 4);
  const Outcome both =
      step_with(options, {"*:lr=0.5,frozen", "layers.0.*:frozen=no", "layers.0.bias:lr=0.25"});
  const Outcome alone = step_with(options, {"layers.0.weight:lr=0.5", "layers.0.bias:lr=0.25"});
  for (const char* name : {"layers.0.weight", "layers.0.bias"})
    EXPECT_EQ(both.after.at(name), alone.after.at(name)) << name;
  for (const char* name : {"layers.1.weight", "layers.2.bias"})
    EXPECT_EQ(both.after.at(name), both.before.at(name)) << name;
  EXPECT_EQ(step_with(options, {"*:frozen", "layers.0.*:frozen=no"}).after.at("layers.0.bias"),
            step_with(plain_options(3, 4), {}).after.at("layers.0.bias"));
}

TEST(ParameterGroup, EveryPartitionAndOptimizer_SameBits) {
  for (const OptimizerKind kind : optimizer_kinds()) {
    std::string expected;
    for (const int ranks : {1, 2, 3}) {
      TestOptions options = plain_options(ranks, 4);
      options.step.optimizer = optimizer_defaults(kind);
      options.step.optimizer.weight_decay = 0.1;
      options.step.clip_norm = 0.5;
      options.step.learning_rate.base = 1e-2;
      options.step.parameters = {parse_parameter_group("*.bias:lr=0.3"),
                                 parse_parameter_group("layers.1.*:weight-decay=0.01,lr=2"),
                                 parse_parameter_group("layers.2.bias:frozen")};
      Trainer trainer(parse_model(kModel), options.pipeline, options);
      Batch batch(first_digits(20), 4);
      for (int step = 0; step < 3; ++step) trainer.step(batch);
      if (expected.empty()) expected = trainer.weights_hash();
      EXPECT_EQ(trainer.weights_hash(), expected) << name_of(kind) << " in " << ranks;
    }
  }
}

TEST(ParameterGroup, OfOneTiedWeightIsThatOfAll) {
  TestOptions options = plain_options(2, 4);
  options.pipeline.schedule = "chimera";
  options.step.tied = {{"layers.1.weight", "layers.3.weight"}};
  options.step.parameters = {parse_parameter_group("layers.3.weight:lr=0.5")};
  Trainer trainer(parse_model("mlp:64-16-16-16-16-10"), options.pipeline, options);
  Batch batch(first_digits(20), 4);
  trainer.step(batch);
  const NamedValues after = values_of(trainer);
  EXPECT_EQ(after.at("layers.1.weight"), after.at("layers.3.weight"));
  for (const HostedStage& hosted : trainer.stages())
    for (const Parameter* parameter : hosted.body->parameters()) {
      const auto values = parameter->value.as<float>();
      EXPECT_EQ(std::vector<float>(values.begin(), values.end()), after.at(parameter->name));
    }
}

TEST(ParameterGroup, IsReadFromItsTextAgain) {
  const ParameterGroup group{"layers.0.*", 0.1, 0.0, false};
  EXPECT_EQ(to_string(group), "layers.0.*:lr=0.1,weight-decay=0,frozen=no");
  EXPECT_EQ(parse_parameter_group(to_string(group)), group);
  EXPECT_EQ(parse_parameter_group("*:frozen"), (ParameterGroup{.pattern = "*", .frozen = true}));
  EXPECT_EQ(parse_parameter_group("a:b:lr=2"),
            (ParameterGroup{.pattern = "a:b", .learning_rate_factor = 2}));
}

TEST(ParameterGroup, RefusesWhatItCannotMean) {
  for (const char* text : {"",
                           "layers.0.*",
                           ":lr=1",
                           "*:",
                           "*:lr",
                           "*:lr=x",
                           "*:lr=-1",
                           "*:rate=1",
                           "*:lr=1,lr=1",
                           "*:lr=1,,frozen",
                           "*:frozen=perhaps",
                           "*:weight-decay=inf"})
    EXPECT_THROW((void)parse_parameter_group(text), InvalidArgument) << text;
  TestOptions options = plain_options(3, 4);
  options.step.parameters = {{.pattern = "layers.2.wieght", .frozen = true}};
  try {
    const Trainer trainer(parse_model(kModel), options.pipeline, options);
    ADD_FAILURE() << "a group that names nothing is taken";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("parameters layers.2.wieght:frozen=yes: no parameter is called "
                          "'layers.2.wieght'; the nearest of 6 is 'layers.2.weight'"));
  }
  options.step.parameters = {{.pattern = "*", .learning_rate_factor = -1}};
  EXPECT_THROW(Trainer(parse_model(kModel), options.pipeline, options), InvalidArgument);
}

}  // namespace
}  // namespace millrace
