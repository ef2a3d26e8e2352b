// Checkpoints inside an update: the same bytes whoever writes them, what each copy and each tied
// weight holds for itself, and who may finish the update.
#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/training/checkpoint.hpp"
#include "millrace/training/state.hpp"
#include "tests/training/sample_files.hpp"
#include "tests/training/saved_runs.hpp"

namespace millrace {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing_files::Folder;
using testing_training::files_in;
using testing_training::first_digits;
using testing_training::kSavedModel;
using testing_training::names_in;
using testing_training::on_ranks;
using testing_training::parts_on;
using testing_training::saved_options;

constexpr const char* kSavedPlace = "/step-0000000004-plus-0000000002";

/// Mini-batches of four micro-batches in two passes.
TestOptions options_of(const std::string& folder, int ranks = 2, int passes = 2) {
  TestOptions options = saved_options(folder, ranks);
  options.step.accumulate = passes;
  options.pipeline.shape.micro_batches = 4 / passes;
  return options;
}

/// fit() that is stopped behind half of the fifth step.
void fit_half(Trainer& trainer, const Dataset& data) {
  std::stop_source stop;
  trainer.on_pass = [&] {
    if (trainer.state().counters().mini_batches == 5) stop.request_stop();
  };
  EXPECT_TRUE(trainer.fit(data, stop.get_token()).stopped);
  EXPECT_EQ(trainer.state().counters().mini_batches, 4);
  EXPECT_EQ(trainer.state().counters().partial.micro_batches, 2);
}

std::string message_of(const auto& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no exception";
}

TEST(PartialUpdate, AnySplit_SameBytes) {
  const Dataset data = first_digits(60);
  const Folder folder("partial_same_bytes");
  const std::string reference = folder.path() + "/1";
  Trainer one = trainer_of(parse_model(kSavedModel), options_of(reference, 1));
  fit_half(one, data);
  const auto expected = files_in(reference + kSavedPlace);
  EXPECT_EQ(expected.size(), 22U);  // seven layers with parameters, thrice, and the manifest
  const Checkpoint checkpoint(reference + kSavedPlace);
  for (const std::string& name : one.state().names())
    EXPECT_EQ(tensor_digest(checkpoint.read(name, "gradient")),
              tensor_digest(one.state().read(name, "gradient")));
  for (const int ranks : {2, 3}) {
    const std::string place = folder.path() + "/" + std::to_string(ranks);
    on_ranks(ranks, [&](Endpoint& endpoint, ProcessGroup& group) {
      const TestOptions options = options_of(place, ranks);
      Trainer rank(parts_on(options, endpoint, group));
      fit_half(rank, data);
    });
    EXPECT_EQ(files_in(place + kSavedPlace), expected) << ranks << " processes";
  }
}

TEST(PartialUpdate, OtherPassCount_KeepsItsSums) {
  const Folder folder("partial_refused");
  const Dataset data = first_digits(60);
  Trainer first = trainer_of(parse_model(kSavedModel), options_of(folder.path(), 1));
  fit_half(first, data);
  TestOptions options = options_of("", 1);
  options.pipeline.shape.micro_batches = 4;
  options.step.accumulate = 1;
  Trainer other(parse_model(kSavedModel), options.pipeline, options);
  other.state().set_counters(first.state().counters());
  const Tensor& sums = first.state().read("layers.0.weight", "gradient");
  other.state().write("layers.0.weight", sums, "gradient");
  Batch batch(first_digits(25), 4);
  EXPECT_THAT(message_of([&] { other.step(batch); }),
              HasSubstr("the unfinished update ends behind"));
  EXPECT_EQ(other.state().counters().partial.micro_batches, 2);
  EXPECT_EQ(tensor_digest(other.state().read("layers.0.weight", "gradient")), tensor_digest(sums));
}

/// Two copies of the model, each of which has seen other micro-batches; in one process and in two.
TEST(PartialUpdate, HoldsTheSumsOfEveryCopy) {
  const Dataset data = first_digits(60);
  const Folder folder("partial_copies");
  const auto options_in = [](const std::string& place) {
    TestOptions options = options_of(place);
    options.pipeline.schedule = "chimera";
    return options;
  };
  Trainer whole = trainer_of(parse_model(kSavedModel), options_in(""));
  whole.fit(data);
  Trainer first = trainer_of(parse_model(kSavedModel), options_in(folder.path() + "/one"));
  fit_half(first, data);
  on_ranks(2, [&](Endpoint& endpoint, ProcessGroup& group) {
    const TestOptions options = options_in(folder.path() + "/two");
    Trainer rank(parts_on(options, endpoint, group));
    fit_half(rank, data);
  });
  EXPECT_EQ(files_in(folder.path() + "/one" + kSavedPlace),
            files_in(folder.path() + "/two" + kSavedPlace));
  const Checkpoint checkpoint(folder.path() + "/one" + kSavedPlace);
  EXPECT_EQ(checkpoint.manifest().counters.partial.copies, 2);
  EXPECT_NE(tensor_digest(checkpoint.read("layers.0.weight", "gradient")),
            tensor_digest(checkpoint.read("layers.0.weight", "gradient.1")));
  Trainer second = trainer_of(parse_model(kSavedModel), options_in(""));
  second.resume(folder.path() + "/two");
  second.fit(data);
  EXPECT_EQ(second.weights_hash(), whole.weights_hash());
  on_ranks(2, [&](Endpoint& endpoint, ProcessGroup& group) {
    const TestOptions options = options_in("");
    Trainer rank(parts_on(options, endpoint, group));
    rank.resume(folder.path() + "/one");
    rank.fit(data);
    EXPECT_EQ(rank.weights_hash(), whole.weights_hash());
  });
}

TEST(PartialUpdate, HoldsTheSumsOfEveryTiedWeight) {
  const Dataset data = first_digits(60);
  const Folder folder("partial_ties");
  const char* const model = "mlp:64-10-10-10";
  const auto options_in = [](const std::string& place, int ranks) {
    TestOptions options = options_of(place, ranks);
    options.step.tied = {{"layers.1.weight", "layers.2.weight"}};
    return options;
  };
  Trainer whole = trainer_of(parse_model(model), options_in("", 1));
  whole.fit(data);
  Trainer first = trainer_of(parse_model(model), options_in(folder.path(), 3));
  fit_half(first, data);
  EXPECT_NE(tensor_digest(first.state().read("layers.1.weight", "gradient")),
            tensor_digest(first.state().read("layers.2.weight", "gradient")));
  Trainer second = trainer_of(parse_model(model), options_in("", 2));
  second.resume(folder.path());
  second.fit(data);
  EXPECT_EQ(second.weights_hash(), whole.weights_hash());
}

/// Sums of batch norm's statistics are sums like others.
TEST(PartialUpdate, HoldsTheSumsOfRunningStatistics) {
  const Dataset data = first_digits(60);
  const Folder folder("partial_statistics");
  const char* const model = "mlp:64-12-10,norm=batch";
  Trainer whole = trainer_of(parse_model(model), options_of("", 1, 1));
  whole.fit(data);
  Trainer first = trainer_of(parse_model(model), options_of(folder.path(), 2));
  fit_half(first, data);
  Trainer second = trainer_of(parse_model(model), options_of("", 3, 4));
  second.resume(folder.path());
  second.fit(data);
  EXPECT_EQ(second.weights_hash(), whole.weights_hash());
  for (const std::string& name : whole.state().names())
    EXPECT_EQ(tensor_digest(second.state().read(name)), tensor_digest(whole.state().read(name)))
        << name;
}

TEST(PartialUpdate, OtherSettings_AreRejected) {
  const Dataset data = first_digits(60);
  const Folder folder("partial_refusals");
  Trainer first = trainer_of(parse_model(kSavedModel), options_of(folder.path()));
  fit_half(first, data);
  const auto refusal = [&](const TestOptions& options) {
    return message_of([&] {
      Trainer(parse_model(kSavedModel), options.pipeline, options).resume(folder.path());
    });
  };
  EXPECT_THAT(
      refusal(options_of("", 2, 1)),
      AllOf(HasSubstr("was saved inside an update, behind 2 of its 4 micro-batches: where a "
                      "pass begins differs: the checkpoint has sums that end behind "
                      "micro-batch 2, this training passes of 4"),
            HasSubstr("finish that update as it was begun, or go on from a checkpoint "
                      "between two updates")));
  TestOptions others = options_of("", 2, 1);
  others.step.accumulate = 2;
  EXPECT_THAT(refusal(others),
              HasSubstr("number of micro-batches of an update differs: the checkpoint has 4, this "
                        "training 8"));
  TestOptions batch = options_of("");
  batch.fit.batch_size = 50;
  EXPECT_THAT(refusal(batch),
              HasSubstr("batch_size differs: the checkpoint has 25, this training"));
  TestOptions copies = options_of("");
  copies.pipeline.schedule = "chimera";
  EXPECT_THAT(refusal(copies),
              AllOf(HasSubstr("order of accumulation differs: the checkpoint has ascending, this "
                              "training as in plan"),
                    HasSubstr("number of copies differs: the checkpoint has 1, this training 2")));
  TestOptions order = options_of("");
  order.pipeline.schedule = "gpipe-lifo";
  EXPECT_THAT(refusal(order),
              AllOf(HasSubstr("order of accumulation differs"), Not(HasSubstr("copies"))));
  EXPECT_EQ(refusal(options_of("", 4, 4)), "no exception");
}

/// Between two updates nothing of all this is asked.
TEST(PartialUpdate, LeavesCheckpointsBetweenTwoUpdatesAsTheyWere) {
  const Dataset data = first_digits(60);
  const Folder folder("partial_boundary");
  for (const int passes : {1, 2, 4}) {
    const std::string place = folder.path() + "/" + std::to_string(passes);
    Trainer trainer = trainer_of(parse_model(kSavedModel), options_of(place, 2, passes));
    testing_training::fit_steps(trainer, data, 3);
    EXPECT_EQ(files_in(place + "/step-0000000003"), files_in(folder.path() + "/1/step-0000000003"));
  }
  TestOptions options = options_of("");
  options.pipeline.schedule = "chimera";
  Trainer other(parse_model(kSavedModel), options.pipeline, options);
  EXPECT_THAT(message_of([&] { other.resume(folder.path() + "/1"); }), Not(HasSubstr("update")));
}

TEST(PartialUpdate, IsNewerThanItsStep) {
  const Dataset data = first_digits(60);
  const Folder folder("partial_retention");
  TestOptions options = options_of(folder.path());
  options.save.every_steps = 2;
  {
    Trainer trainer(parse_model(kSavedModel), options.pipeline, options);
    fit_half(trainer, data);
  }
  EXPECT_THAT(names_in(folder.path()),
              ElementsAre("step-0000000004", std::string(kSavedPlace + 1)));
  const CheckpointPlace newest = find_checkpoints(folder.path()).front();
  EXPECT_EQ(newest, (CheckpointPlace{folder.path() + kSavedPlace, 4, 2}));
  Trainer trainer(parse_model(kSavedModel), options.pipeline, options);
  EXPECT_EQ(trainer.resume(folder.path()).folder, folder.path() + kSavedPlace);
  testing_training::fit_steps(trainer, data, 2);
  EXPECT_THAT(names_in(folder.path()),
              ElementsAre(std::string(kSavedPlace + 1), "step-0000000006"));
}

/// What comes after belongs to the other place.
TEST(PartialUpdate, OtherStart_DropsIt) {
  const Dataset data = first_digits(60);
  const Folder folder("partial_dropped");
  TestOptions options = options_of(folder.path());
  options.save.every_steps = 4;
  {
    Trainer saved(parse_model(kSavedModel), options.pipeline, options);
    fit_half(saved, data);
  }
  Trainer stopped = trainer_of(parse_model(kSavedModel), options_of(""));
  fit_half(stopped, data);
  Trainer reference = trainer_of(parse_model(kSavedModel), options_of(""));
  reference.resume(folder.path() + "/step-0000000004");
  reference.fit(data);
  stopped.resume(folder.path() + "/step-0000000004");
  EXPECT_EQ(stopped.state().counters().partial, PartialUpdate());
  stopped.on_pass = {};
  stopped.fit(data);
  EXPECT_EQ(stopped.weights_hash(), reference.weights_hash());

  const auto fit_anew = [&](bool half) {
    Trainer trainer = trainer_of(parse_model(kSavedModel), options_of(""));
    trainer.resume(folder.path() + (half ? kSavedPlace : "/step-0000000004"));
    Loader loader(data, trainer.loader_options());
    loader.seek({2, 0});
    trainer.fit(loader);
    return trainer.weights_hash();
  };
  EXPECT_EQ(fit_anew(true), fit_anew(false));
}

}  // namespace
}  // namespace millrace
