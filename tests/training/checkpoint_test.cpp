// Checkpoints: the same bytes whoever writes them, readable by anybody, and a training that goes on
// from one as if it had never stopped.
#include "millrace/training/checkpoint.hpp"

#include <filesystem>
#include <mutex>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "millrace/core/error.hpp"
#include "millrace/stages/products.hpp"
#include "millrace/training/state.hpp"
#include "tests/training/sample_files.hpp"
#include "tests/training/saved_runs.hpp"
#include "tests/training/ten_line_reader.hpp"
#include "tests/transport/repetitions.hpp"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing_files::Folder;
using testing_training::bytes_in;
using testing_training::files_in;
using testing_training::first_digits;
using testing_training::fit_steps;
using testing_training::kSavedModel;
using testing_training::names_in;
using testing_training::on_ranks;
using testing_training::parts_on;
using testing_training::saved_options;
using testing_training::tensors_in;

std::string message_of(const auto& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no exception";
}

TEST(Checkpoint, AnySplit_SameBytes) {
  const Dataset data = first_digits(60);
  const Folder folder("checkpoint_same_bytes");
  const std::string reference = folder.path() + "/1";
  Trainer one = trainer_of(parse_model(kSavedModel), saved_options(reference, 1));
  fit_steps(one, data, 4);
  const auto expected = files_in(reference + "/step-0000000004");
  EXPECT_EQ(expected.size(), 15U);  // seven layers with parameters, twice, and the manifest
  for (const int ranks : {2, 3, 4}) {
    const std::string inside = folder.path() + "/stages-" + std::to_string(ranks);
    Trainer trainer = trainer_of(parse_model(kSavedModel), saved_options(inside, ranks));
    fit_steps(trainer, data, 4);
    EXPECT_EQ(files_in(inside + "/step-0000000004"), expected) << ranks << " stages";
    const std::string outside = folder.path() + "/processes-" + std::to_string(ranks);
    on_ranks(ranks, [&](Endpoint& endpoint, ProcessGroup& group) {
      const TestOptions options = saved_options(outside, ranks);
      Trainer rank(parts_on(options, endpoint, group));
      fit_steps(rank, data, 4);
    });
    const auto written = files_in(outside + "/step-0000000004");
    EXPECT_EQ(written, expected) << ranks << " processes";
  }
}

TEST(Checkpoint, TenLineReader_FindsEqualHashes) {
  const Folder folder("checkpoint_ten_lines");
  Trainer trainer = trainer_of(parse_model(kSavedModel), saved_options(folder.path()));
  fit_steps(trainer, first_digits(60), 3);
  const std::string place = folder.path() + "/step-0000000003";
  const Checkpoint checkpoint(place);
  EXPECT_EQ(checkpoint.manifest().counters, trainer.state().counters());
  std::map<std::string, std::string> digests;
  std::size_t tensors = 0;
  for (const CheckpointShard& shard : checkpoint.manifest().shards) {
    const auto held = tensors_in(bytes_in(place + "/" + shard.file));
    EXPECT_EQ(held.size(), shard.tensors.size());
    for (const CheckpointTensor& tensor : shard.tensors) {
      ++tensors;
      const Tensor& now = trainer.state().read(tensor.name, tensor.part);
      EXPECT_EQ(held.at(tensor_key(tensor)),
                std::string(static_cast<const char*>(now.data()), now.bytes()));
      if (tensor.part == "value") digests[tensor.name] = tensor.digest;
    }
  }
  // Values and two moments; running statistics, three for each of three norms, have values alone.
  EXPECT_EQ(tensors, 3 * (trainer.state().names().size() - 9) + 9);
  EXPECT_EQ(combine_digests(digests), trainer.weights_hash());
}

TEST(Checkpoint, OfAnOptimizerWithoutStateHasWeightsAlone) {
  const Folder folder("checkpoint_sgd");
  TestOptions options = saved_options(folder.path());
  options.step.optimizer.kind = OptimizerKind::Sgd;
  Trainer trainer(parse_model("mlp:64-12-10"), options.pipeline, options);
  fit_steps(trainer, first_digits(60), 1);
  EXPECT_THAT(names_in(folder.path() + "/step-0000000001"),
              ElementsAre("layers.0.weights.safetensors",
                          "layers.1.weights.safetensors",
                          "manifest.json",
                          "run.json"));
}

TEST(Checkpoint, SaveEvery_KeepsTheNewest) {
  const Folder folder("checkpoint_retention");
  TestOptions options = saved_options(folder.path());
  options.save.every_steps = 2;
  options.save.keep = 2;
  options.save.keep_every = 4;
  Trainer trainer(parse_model(kSavedModel), options.pipeline, options);
  std::vector<std::int64_t> saved;
  trainer.on_save = [&](const SaveReport& report) {
    EXPECT_THAT(report.fault, IsEmpty());
    saved.push_back(report.step);
  };
  fit_steps(trainer, first_digits(60), 11);
  EXPECT_THAT(saved, ElementsAre(2, 4, 6, 8, 10, 11));
  EXPECT_THAT(
      names_in(folder.path()),
      ElementsAre("step-0000000004", "step-0000000008", "step-0000000010", "step-0000000011"));
  EXPECT_EQ(find_checkpoints(folder.path()).front().step, 11);
}

TEST(Checkpoint, OtherGemmLibrary_ResumeWarns) {
  const Folder folder("checkpoint_products");
  Trainer trainer = trainer_of(parse_model(kSavedModel), saved_options(folder.path()));
  fit_steps(trainer, first_digits(60), 1);
  const std::string file = folder.path() + "/step-0000000001/run.json";
  const std::string ours = product_libraries();
  nlohmann::json facts = nlohmann::json::parse(bytes_in(file));
  ASSERT_EQ(facts["products"], ours);
  facts["products"] = "an abacus";
  facts.erase("run_xxh3_128");  // as versions wrote it that had no seal
  std::ofstream(file) << facts.dump(1) << "\n";

  Trainer other = trainer_of(parse_model(kSavedModel), saved_options(folder.path()));
  EXPECT_THAT(other.resume(folder.path()).warnings,
              ElementsAre("bits may differ from those of an uninterrupted run from here on: "
                          "products: " +
                          ours + ", was an abacus"));
}

/// The hash of a checkpoint's weights.
std::string weights_hash_of(const Manifest& manifest) {
  std::map<std::string, std::string> digests;
  for (const CheckpointShard& shard : manifest.shards)
    for (const CheckpointTensor& tensor : shard.tensors)
      if (tensor.part == "value") digests[tensor.name] = tensor.digest;
  return combine_digests(digests);
}

TEST(Checkpoint, BackgroundSave_HoldsItsStep) {
  const Folder folder("checkpoint_torn");
  TestOptions options = saved_options(folder.path());
  options.save.every_steps = 2;
  options.fit.steps = static_cast<std::int64_t>(testing_transport::times(60));
  Trainer trainer(parse_model("mlp:64-200-200-10"), options.pipeline, options);
  std::map<std::int64_t, std::string> at_boundary;
  trainer.on_step = [&](const StepReport&) {
    at_boundary[trainer.state().counters().mini_batches] = trainer.weights_hash();
  };
  std::size_t saved = 0;
  trainer.on_save = [&](const SaveReport& report) {
    ++saved;
    EXPECT_EQ(weights_hash_of(Checkpoint(report.folder).manifest()), at_boundary.at(report.step))
        << report.step;
  };
  trainer.fit(first_digits(60));
  EXPECT_EQ(saved, at_boundary.size() / 2);
}

TEST(Resume, GoesOnAsIfItHadNotStopped) {
  const Dataset data = first_digits(60);
  const Folder folder("checkpoint_resume");
  Trainer whole = trainer_of(parse_model(kSavedModel), saved_options(""));
  whole.fit(data);
  for (const int steps : {1, 3, 7, 11}) {
    const std::string place = folder.path() + "/" + std::to_string(steps);
    Trainer first = trainer_of(parse_model(kSavedModel), saved_options(place, 4));
    fit_steps(first, data, steps);
    Trainer second = trainer_of(parse_model(kSavedModel), saved_options(place, 3));
    const ResumeReport report = second.resume(place);
    EXPECT_EQ(fs::path(report.folder), fs::path(find_checkpoints(place).front().folder));
    EXPECT_THAT(report.changed, IsEmpty());
    EXPECT_THAT(report.warnings, IsEmpty());
    second.fit(data);
    EXPECT_EQ(second.weights_hash(), whole.weights_hash()) << steps;
    EXPECT_EQ(second.state().counters(), whole.state().counters());
  }
}

TEST(Resume, OverProcessesGoesOnFromAnyNumberOfThem) {
  const Dataset data = first_digits(60);
  const Folder folder("checkpoint_processes");
  Trainer whole = trainer_of(parse_model(kSavedModel), saved_options(""));
  whole.fit(data);
  int stop = 2;
  for (const int ranks : {3, 1, 4, 2}) {
    on_ranks(ranks, [&](Endpoint& endpoint, ProcessGroup& group) {
      TestOptions options = saved_options(folder.path());
      options.save.every_steps = 1;
      Trainer trainer(parts_on(options, endpoint, group));
      if (stop > 2) trainer.resume(folder.path());
      fit_steps(trainer, data, 2);
      EXPECT_EQ(trainer.state().counters().mini_batches, stop);
    });
    stop += 2;
  }
  Trainer last = trainer_of(parse_model(kSavedModel), saved_options(folder.path(), 2));
  last.resume(folder.path());
  last.fit(data);
  EXPECT_EQ(last.weights_hash(), whole.weights_hash());
}

TEST(Resume, PassesOverWhatIsDamaged) {
  const Dataset data = first_digits(60);
  const Folder folder("checkpoint_fallback");
  TestOptions options = saved_options(folder.path());
  options.save.every_steps = 1;
  options.save.keep = 3;
  {
    Trainer trainer(parse_model(kSavedModel), options.pipeline, options);
    fit_steps(trainer, data, 5);
  }
  fs::resize_file(folder.path() + "/step-0000000005/layers.0.weights.safetensors", 5000);
  fs::remove(folder.path() + "/step-0000000004/layers.0.optimizer.safetensors");
  for (const int ranks : {1, 3})
    on_ranks(ranks, [&](Endpoint& endpoint, ProcessGroup& group) {
      Trainer trainer(parts_on(options, endpoint, group));
      const ResumeReport report = trainer.resume(folder.path());
      EXPECT_THAT(report.folder, HasSubstr("step-0000000003"));
      ASSERT_EQ(report.damaged.size(), 2U);
      EXPECT_THAT(report.damaged[0].fault, HasSubstr("step-0000000005/layers.0.weights"));
      EXPECT_THAT(report.damaged[1].fault, HasSubstr("step-0000000004/layers.0.optimizer"));
    });
  EXPECT_THAT(message_of([&] {
                Trainer(parse_model(kSavedModel), options.pipeline, options)
                    .resume(folder.path() + "/step-0000000005");
              }),
              HasSubstr("layers.0.weights.safetensors"));
  // Where training goes on, the damaged ones are put aside, and no longer count.
  Trainer trainer(parse_model(kSavedModel), options.pipeline, options);
  trainer.resume(folder.path());
  fit_steps(trainer, data, 1);
  EXPECT_THAT(names_in(folder.path()),
              ElementsAre("damaged-step-0000000004",
                          "damaged-step-0000000005",
                          "step-0000000003",
                          "step-0000000004"));
}

TEST(Resume, RefusesAnotherTrainingAndNamesEveryDifference) {
  const Folder folder("checkpoint_mismatch");
  Trainer trainer = trainer_of(parse_model(kSavedModel), saved_options(folder.path()));
  fit_steps(trainer, first_digits(60), 1);
  TestOptions options = saved_options("");
  options.step.optimizer.kind = OptimizerKind::Adam;
  options.step.seed = 5;
  Trainer other(parse_model("mlp:64-12-10-10-10"), options.pipeline, options);
  const std::string before = other.weights_hash();
  EXPECT_THAT(message_of([&] { other.resume(folder.path()); }),
              AllOf(HasSubstr("model differs: the checkpoint has "
                              "'mlp:64-12-10-10-10,norm=batch,dropout=0.2', this training "
                              "'mlp:64-12-10-10-10'"),
                    HasSubstr("optimizer differs: the checkpoint has adamw, this training adam"),
                    HasSubstr("seed differs: the checkpoint has 1, this training 5")));
  EXPECT_EQ(other.weights_hash(), before);

  Trainer data = trainer_of(parse_model(kSavedModel), saved_options(""));
  data.resume(folder.path());
  EXPECT_THAT(message_of([&] { data.fit(first_digits(60, 100)); }), HasSubstr("data differs"));
  EXPECT_THAT(message_of([&] { data.resume(folder.path() + "/nowhere"); }),
              HasSubstr("nowhere: has no checkpoint"));
}

TEST(Resume, TellsWhichSettingsWereOthers) {
  const Folder folder("checkpoint_changed");
  Trainer trainer = trainer_of(parse_model(kSavedModel), saved_options(folder.path()));
  fit_steps(trainer, first_digits(60), 2);
  TestOptions options = saved_options("");
  options.step.learning_rate.base = 0.01;
  options.step.clip_norm = {};
  options.fit.batch_size = 50;
  Trainer other(parse_model(kSavedModel), options.pipeline, options);
  EXPECT_THAT(other.resume(folder.path()).changed,
              ElementsAre("batch_size: 50, was 25",
                          "clip_norm: none, was 0.5",
                          "learning_rate.base: 0.01, was 0.02"));
  EXPECT_EQ(other.state().counters().position, (DataPosition{0, 1}));
  options.fit.batch_size = 30;
  EXPECT_THAT(message_of([&] {
                Trainer(parse_model(kSavedModel), options.pipeline, options).resume(folder.path());
              }),
              HasSubstr("batch_size 30 does not fit: the checkpoint was saved after 50 samples"));
}

TEST(Resume, KeepsTwoTrainingsOutOfOneFolder) {
  const Dataset data = first_digits(60);
  const Folder folder("checkpoint_own_folder");
  TestOptions options = saved_options(folder.path());
  options.save.every_steps = 1;
  Trainer first(parse_model(kSavedModel), options.pipeline, options);
  fit_steps(first, data, 3);
  Trainer fresh(parse_model(kSavedModel), options.pipeline, options);
  EXPECT_THAT(message_of([&] { fresh.fit(data); }),
              HasSubstr("has checkpoints of another run, the newest of step 3; resume it"));
  Trainer back(parse_model(kSavedModel), options.pipeline, options);
  back.resume(folder.path() + "/step-0000000002");
  EXPECT_THAT(message_of([&] { back.fit(data); }), HasSubstr("this one goes on from step 2"));
  EXPECT_EQ(find_checkpoints(folder.path()).size(), 2U);
}

/// The options of the run that wrote tests/training/data/adamw.
TestOptions stored_options(const std::string& folder, int ranks) {
  TestOptions options = testing_training::plain_options(ranks, 4);
  options.step.accumulate = 2;
  options.step.accumulate_order = AccumulateOrder::Tree;
  options.step.optimizer = {.kind = OptimizerKind::AdamW, .beta2 = 0.98, .weight_decay = 0.05};
  options.step.learning_rate = {.kind = LearningRateKind::Cosine,
                                .base = 0.02,
                                .warm_up = 3,
                                .total_updates = 6,
                                .floor = 0.1};
  options.step.parameters = {parse_parameter_group("*.bias:lr=0.5")};
  options.step.clip_norm = 0.5;
  options.step.max_skipped = 7;
  options.step.seed = 3;
  options.fit.batch_size = 48;
  options.fit.epochs = 60;
  options.fit.steps = 6;
  options.fit.last_batch = LastBatch::Drop;
  options.save.folder = folder;
  return options;
}

TEST(Resume, StoredCheckpoint_ReachesStateOfUninterruptedRun) {
  const std::string stored = MILLRACE_SOURCE_DIR "/tests/training/data/adamw";
  const ModelSpec model = parse_model("mlp:64-10-10,norm=batch");
  const Dataset data = load_data("digits", 3).train;
  Trainer whole = trainer_of(model, stored_options("", 2));
  const ResumeReport report = whole.resume(stored);
  EXPECT_THAT(report.changed, IsEmpty());
  EXPECT_EQ(whole.weights_hash(), "692fa8c7e32dc7d6a7f331b53756582f");
  whole.fit(data);

  const Folder folder("checkpoint_stored");
  Trainer first = trainer_of(model, stored_options(folder.path(), 3));
  first.resume(stored + "/step-0000000004");
  fit_steps(first, data, 1);
  Trainer second = trainer_of(model, stored_options(folder.path(), 1));
  EXPECT_THAT(second.resume(folder.path()).changed, IsEmpty());
  second.fit(data);
  EXPECT_EQ(second.weights_hash(), whole.weights_hash());
  EXPECT_EQ(second.state().counters(), whole.state().counters());

  const Manifest expected = read_manifest(bytes_in(stored + "/final.json"), "final.json");
  EXPECT_EQ(whole.state().counters(), expected.counters);
  EXPECT_EQ(Checkpoint(folder.path() + "/step-0000000006").manifest().settings, expected.settings);
#ifdef NDEBUG  // the stored run was a Release build; other optimizations round otherwise
  if (report.warnings.empty()) {  // the processor and GEMM library of the stored run
    EXPECT_EQ(whole.weights_hash(), weights_hash_of(expected));
  }
#endif
}

}  // namespace
}  // namespace millrace
