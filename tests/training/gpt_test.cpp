// Transformers on text through the Trainer: the same bits for every cut, schedule, executor,
// recompute and precision, with tied heads, and in slices; memory as predicted; text that they
// give.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/run/executor.hpp"
#include "millrace/training/dataset.hpp"
#include "millrace/training/generator.hpp"
#include "millrace/training/records.hpp"
#include "millrace/training/trainer.hpp"
#include "support/test_options.hpp"

namespace millrace {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

const TrainTest& verses() {
  static const TrainTest data =
      text_samples("verses", built_in_text().substr(0, 30000), {.positions = 12});
  return data;
}

ModelSpec gpt(const std::string& more, DType precision = DType::F32) {
  ModelSpec model = parse_model("gpt:layers=2,d=16,heads=4,context=12,dropout=0.1,vocabulary=" +
                                std::to_string(verses().train.classes) + more);
  model.precision = precision;
  return model;
}

struct Job {
  std::string schedule = "gpipe";
  std::string executor = "sequential";
  int ranks = 1;
  std::optional<int> slices = {};
  std::string recompute = "none";
};

std::unique_ptr<Trainer> trained(const ModelSpec& model, const Job& job) {
  TestOptions options;
  options.pipeline.schedule = job.schedule;
  options.run.executor = job.executor;
  options.pipeline.shape.ranks = job.ranks;
  options.pipeline.shape.slices = job.slices;
  options.pipeline.shape.micro_batches = 4;
  options.run.recompute = parse_recompute(job.recompute);
  options.step.optimizer = optimizer_defaults(OptimizerKind::AdamW);
  options.step.learning_rate.base = 0.01;
  options.step.clip_norm = 1;
  options.fit.batch_size = 10;
  options.fit.steps = 3;
  auto trainer = std::make_unique<Trainer>(model, options.pipeline, options);
  trainer->fit(verses().train);
  return trainer;
}

std::string hash_of(const ModelSpec& model, const Job& job) {
  return trained(model, job)->weights_hash();
}

using Form = std::tuple<std::string, std::string, DType>;  // executor, options of the model

class GptBits : public testing::TestWithParam<Form> {};

TEST_P(GptBits, AreThoseOfOneStageForEverySchedule) {
  const auto& [executor, form, precision] = GetParam();
  const ModelSpec model = gpt(form, precision);
  const std::string alone = hash_of(model, {});
  for (const int ranks : {2, 3, 4}) {
    EXPECT_EQ(hash_of(model, {"1f1b", executor, ranks}), alone) << ranks;
    EXPECT_EQ(hash_of(model, {"zb-h1", executor, ranks, {}, "every-4"}), alone) << ranks;
  }
  EXPECT_EQ(hash_of(model, {"zb-v", executor, 2}), alone);
  EXPECT_EQ(hash_of(model, {"1f1b", executor, 2, {}, "all"}), alone);
}

TEST_P(GptBits, Slices_HaveSequentialBits) {
  const auto& [executor, form, precision] = GetParam();
  const ModelSpec model = gpt(form, precision);
  const std::string alone = hash_of(model, {"seq-1f1b", "sequential", 1, 3});
  for (const int ranks : {2, 4})
    EXPECT_EQ(hash_of(model, {"seq-1f1b", executor, ranks, 3}), alone) << ranks;
  EXPECT_EQ(hash_of(model, {"terapipe", executor, 2, 3}), alone);
  EXPECT_EQ(hash_of(model, {"seqpipe", executor, 2, 3}), alone);
  EXPECT_EQ(hash_of(model, {"seq-1f1b", executor, 3, 3, "all"}), alone);
}

std::string name_of_form(const testing::TestParamInfo<Form>& of) {
  std::string name = std::get<0>(of.param) + std::get<1>(of.param) + "_" +
                     millrace::name_of(std::get<2>(of.param));
  for (char& letter : name)
    if (std::isalnum(static_cast<unsigned char>(letter)) == 0) letter = '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(
    Forms,
    GptBits,
    testing::Values(Form{"sequential", ",tied=yes", DType::F32},
                    Form{"ranks", ",kv=2,mlp=swiglu,norm=rms,pos=rotary", DType::F32},
                    Form{"ranks", ",tied=yes,pos=rotary,kv=1", DType::BF16},
                    Form{"flow-graph", ",tied=yes,norm=rms", DType::F32},
                    Form{"flow-graph", ",mlp=swiglu", DType::BF16}),
    name_of_form);

TEST(Gpt, InSlicesComputesWhatTheWholeSequenceDoes) {
  const ModelSpec model = gpt(",pos=rotary,kv=2");
  const auto whole = trained(model, {});
  const auto sliced = trained(model, {"seq-1f1b", "sequential", 2, 4});
  EXPECT_NEAR(whole->evaluate(verses().test).mean_loss(),
              sliced->evaluate(verses().test).mean_loss(),
              1e-4);
  EXPECT_NE(whole->weights_hash(), sliced->weights_hash());  // rows of products are others
}

TEST(Gpt, KeepsTheBytesThatArePredicted) {
  for (const char* recompute : {"none", "all", "every-3"})
    for (const int slices : {1, 3}) {
      Job job{"1f1b", "sequential", 3, {}, recompute};
      if (slices > 1) job = {"seq-1f1b", "sequential", 3, slices, recompute};
      for (const DType precision : {DType::F32, DType::BF16}) {
        const auto trainer = trained(gpt(",pos=rotary", precision), job);
        Batch batch;
        batch.fill(verses().train, drawn_windows(verses().train, 10, 1, 0), 4, slices);
        EXPECT_EQ(
            trainer->step(batch).peak_stash_bytes,
            predict_stash_peaks(
                trainer->executor().program(), trainer->stages(), unit_sizes(10, 12, 4, slices)))
            << recompute << slices << name_of(precision);
      }
    }
}

TEST(Gpt, LearnsTheTextBetterThanItsLetters) {
  TestOptions options;
  options.pipeline.shape.ranks = 2;
  options.pipeline.shape.micro_batches = 2;
  options.run.executor = "sequential";
  options.step.optimizer = optimizer_defaults(OptimizerKind::AdamW);
  options.step.learning_rate.base = 0.01;
  options.fit.batch_size = 32;
  options.fit.steps = 150;
  Trainer trainer(gpt(",tied=yes"), options.pipeline, options);
  const double before = trainer.evaluate(verses().test).mean_loss();
  trainer.fit(verses().train);
  const double after = trainer.evaluate(verses().test).mean_loss();
  EXPECT_GT(before, 3.5);
  EXPECT_LT(after, 2.6);
}

/// The likeliest tokens by whole forwards over all that is in the window.
std::vector<std::int32_t> plain_continuation(Trainer& trainer,
                                             std::vector<std::int32_t> tokens,
                                             std::size_t count,
                                             std::size_t context) {
  std::size_t begin = 0;
  const std::size_t prompt = tokens.size();
  while (tokens.size() < prompt + count) {
    if (tokens.size() - begin > context) begin = tokens.size() - context / 2;
    const auto length = static_cast<std::int64_t>(tokens.size() - begin);
    Tensor window(DType::I32, {1, length});
    std::copy(tokens.begin() + static_cast<std::ptrdiff_t>(begin),
              tokens.end(),
              window.as<std::int32_t>().begin());
    Dataset data;
    data.name = "window";
    data.inputs.push_back({"tokens", std::move(window), true});
    const Tensor scores = trainer.predict(data);
    const auto row = scores.as<float>().last(static_cast<std::size_t>(scores.dims()[2]));
    tokens.push_back(static_cast<std::int32_t>(std::ranges::max_element(row) - row.begin()));
  }
  return {tokens.begin() + static_cast<std::ptrdiff_t>(prompt), tokens.end()};
}

TEST(Generator, KeptKeysAndValues_EqualWholeForwards) {
  for (const char* form : {",tied=yes", ",pos=rotary,kv=2,mlp=swiglu,norm=rms"}) {
    const ModelSpec model = gpt(form);
    const auto trainer = trained(model, {});
    const auto weights = [&](const std::string& name) {
      return trainer->state().read(name).clone();
    };
    const std::vector<std::int32_t> prompt = verses().train.windows.vocabulary->encode("And the ");
    Generator generator(model, 1, weights);
    const auto given = generator.generate(prompt, {.tokens = 40, .temperature = 0});
    EXPECT_EQ(given.front(), plain_continuation(*trainer, prompt, 40, 12)) << form;
  }
}

TEST(Generator, GivesTheSameTextForEveryCut) {
  const ModelSpec model = gpt(",pos=rotary", DType::BF16);
  const auto trainer = trained(model, {});
  const auto weights = [&](const std::string& name) { return trainer->state().read(name).clone(); };
  const Sampling sampling{.tokens = 30, .samples = 3, .temperature = 1.5, .seed = 5};
  const std::vector<std::int32_t> prompt{3, 1, 4, 1, 5};
  const auto alone = Generator(model, 1, weights).generate(prompt, sampling);
  ASSERT_EQ(alone.size(), 3U);
  EXPECT_NE(alone[0], alone[1]);
  for (const int stages : {2, 3, 6, 11}) {
    Generator generator(model, stages, weights);
    EXPECT_EQ(generator.generate(prompt, sampling), alone) << stages;
    EXPECT_EQ(generator.generate(prompt, sampling), alone) << stages << ", again";
  }
  Sampling other = sampling;
  other.seed = 6;
  EXPECT_NE(Generator(model, 1, weights).generate(prompt, other), alone);
  Sampling few = sampling;
  few.words = 2;
  const auto of_few = Generator(model, 1, weights).generate(prompt, few);
  for (const std::int32_t token : of_few.front()) EXPECT_LT(token, 2);
  Sampling first = sampling;
  first.samples = 1;
  EXPECT_EQ(Generator(model, 1, weights).generate(prompt, first).front(), alone[0]);
}

TEST(Generator, SaysWhatItCannotDo) {
  const ModelSpec model = gpt("");
  const auto trainer = trained(model, {});
  const auto weights = [&](const std::string& name) { return trainer->state().read(name).clone(); };
  Generator generator(model, 1, weights);
  const auto refuses = [&](std::vector<std::int32_t> prompt, Sampling sampling, const char* why) {
    EXPECT_THAT([&] { (void)generator.generate(prompt, sampling); },
                ThrowsMessage<InvalidArgument>(HasSubstr(why)))
        << why;
  };
  refuses({}, {}, "a prompt has at least 1 token");
  refuses({1000}, {}, "token 1000 of the prompt is outside");
  refuses({1}, {.tokens = 0}, "at least 1 token");
  refuses({1}, {.words = 1000}, "first 1000, the model knows");
  refuses({1}, {.temperature = -1}, "temperature must be at least 0");
  EXPECT_THAT([&] { Generator(model, 99, weights); },
              ThrowsMessage<InvalidArgument>(HasSubstr("every stage needs at least one layer")));
  EXPECT_THAT([&] { Generator(parse_model("mlp:4-4"), 1, weights); },
              ThrowsMessage<InvalidArgument>(HasSubstr("a model of sequences generates text")));
}

}  // namespace
}  // namespace millrace
