// The subcommand train as a user meets it: the program is run, and what it prints and returns is
// read.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <sys/wait.h>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/training/sample_files.hpp"

namespace {

using millrace::testing_files::Folder;
using millrace::testing_files::idx_images;
using millrace::testing_files::idx_labels;
using nlohmann::json;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

struct Outcome {
  int code = -1;
  std::string out;
  std::string errors;
};

std::string contents(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// Runs `millrace train FLAGS`.
Outcome train(const std::string& flags) {
  const Folder folder("cli_train");
  const std::string errors = folder.path() + "/errors";
  const std::string command =
      std::string(MILLRACE_BINARY_DIR) + "/millrace train " + flags + " 2>'" + errors + "'";
  Outcome outcome;
  FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 4096> block{};
  while (const std::size_t got = fread(block.data(), 1, block.size(), pipe))
    outcome.out.append(block.data(), got);
  const int status = pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  outcome.errors = contents(errors);
  return outcome;
}

const std::string kSmall = "--model mlp:64-24-20-16-10 -p 2 -m 4 --epochs 2 ";

TEST(Train, PrintsOneJsonObjectAloneOnStandardOutput) {
  const Outcome outcome = train(kSmall + "--json");

  ASSERT_EQ(outcome.code, 0) << outcome.errors;
  const json document = json::parse(outcome.out);
  EXPECT_EQ(document["settings"]["ranks"], 2);
  EXPECT_EQ(document["settings"]["schedule"], "1f1b");
  ASSERT_EQ(document["losses"].size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    const std::string hex = document["losses_hex"][i];
    EXPECT_EQ(std::strtod(hex.c_str(), nullptr), document["losses"][i].get<double>());
  }
  EXPECT_EQ(document["weights_hash"].get<std::string>().size(), 32U);
  EXPECT_GT(document["samples_per_second"], 0.0);
  EXPECT_GT(document["accuracy"], 0.2);
  EXPECT_EQ(document["bubble"]["measured"]["per_rank"].size(), 2U);
  EXPECT_EQ(document["bubble"]["simulated"]["per_rank"].size(), 2U);
  EXPECT_EQ(document["peak_stash_bytes"]["counted"], document["peak_stash_bytes"]["predicted"]);
  EXPECT_GT(document["peak_stash_bytes"]["counted"][0], 0);
  EXPECT_THAT(outcome.errors, AllOf(HasSubstr("epoch 1/2"), HasSubstr("epoch 2/2")));
}

TEST(Train, DryRun_PredictsTheMemoryOfTheRun) {
  const Outcome dry = train(kSmall + "--json --dry-run"), run = train(kSmall + "--json");

  ASSERT_EQ(dry.code, 0) << dry.errors;
  const json plan = json::parse(dry.out), done = json::parse(run.out);
  EXPECT_EQ(plan["settings"], done["settings"]);
  EXPECT_EQ(plan["steps"], done["updates"]);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(plan["ranks"][rank]["activation_bytes"], done["peak_stash_bytes"]["counted"][rank]);
    EXPECT_EQ(plan["ranks"][rank]["optimizer_bytes"], done["optimizer_bytes"]["counted"][rank]);
    EXPECT_GT(plan["ranks"][rank]["weight_bytes"], 0);
  }
  EXPECT_EQ(dry.errors, "");
}

TEST(Train, DryRun_WritesNothingAndFindsWhatIsMissing) {
  const Folder place("dry-run");
  const std::string files = "--dry-run --save " + place.path() + "/new/runs --log " + place.path() +
                            "/log.jsonl --trace " + place.path() + "/trace.json";

  const Outcome dry = train(kSmall + files);

  EXPECT_EQ(dry.code, 0) << dry.errors;
  EXPECT_THAT(dry.out,
              AllOf(HasSubstr("schedule  1f1b p=2 m="),
                    HasSubstr(": valid, deadlock-free\n"),
                    HasSubstr("Dry run: nothing was trained or written.\n")));
  EXPECT_TRUE(std::filesystem::is_empty(place.path()));
  EXPECT_THAT(train(kSmall + "--dry-run --save /proc/none/runs").errors, HasSubstr("--save /proc"));
  EXPECT_THAT(train(kSmall + "--dry-run --data text:/none").errors, HasSubstr("--data text:/none"));
}

TEST(Train, ShowsTheRateOfItsProductsBesideTheMachines) {
  const Outcome outcome = train(kSmall + "--json");

  ASSERT_EQ(outcome.code, 0) << outcome.errors;
  const json document = json::parse(outcome.out);
  const double of_sample = 2 * (2 * 64 * 24 + 3 * (24 * 20 + 20 * 16 + 16 * 10));
  const json& products = document["products"];
  EXPECT_DOUBLE_EQ(products["operations_per_second"],
                   document["samples_per_second"].get<double>() * of_sample);
  EXPECT_GT(products["machine_operations_per_second"], 0.0);
  EXPECT_DOUBLE_EQ(products["share"],
                   products["operations_per_second"].get<double>() /
                       products["machine_operations_per_second"].get<double>());
  EXPECT_GE(products["cores"], 1);
  EXPECT_LE(products["cores"], 2);  // a rank each
  EXPECT_THAT(train(kSmall).out,
              ContainsRegex("\nmatrix multiplication: [0-9.]+ GFLOP/s, [0-9.]+ % of [0-9.]+ "
                            "GFLOP/s measured on (1 core|2 cores)\n"));
}

TEST(Train, SharedCores_SimulateTheBubble) {
  // One thread runs all passes: on one processor either of two ranks waits for the other.
  const std::string flags = kSmall + "--executor sequential";

  const Outcome text = train(flags);
  const json bubble = json::parse(train(flags + " --json").out)["bubble"];

  EXPECT_THAT(text.out,
              AllOf(HasSubstr("\nby rank      measured   simulated   on 1 core   peak stash"),
                    HasSubstr(" % with a core per rank, 50.0 % on 1 core\n")));
  EXPECT_EQ(bubble["simulated_on_cores"]["cores"], 1);
  EXPECT_NEAR(bubble["simulated_on_cores"]["total"].get<double>(), 0.5, 1e-9);
  EXPECT_GT(bubble["simulated_on_cores"]["makespan_seconds"],
            bubble["simulated"]["makespan_seconds"]);
  EXPECT_FALSE(
      json::parse(
          train("--model mlp:64-24-20-16-10 -p 1 -m 4 --epochs 1 --executor sequential --json")
              .out)["bubble"]
          .contains("simulated_on_cores"));
}

TEST(Train, Results_BeginWithAccuracySpeedAndBubble) {
  EXPECT_THAT(train(kSmall).out,
              ContainsRegex("\ntest accuracy [0-9.]+ % .*\n"
                            "[0-9]+ samples in [0-9.]+ s, [0-9]+ samples/s, .*\n"
                            "bubble [0-9.]+ %, simulated [0-9.]+ % with a core per rank.*\n"));
}

TEST(Train, UntypedRanks_DependOnTheMachine) {
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  const int ranks = std::clamp(cores, 2, 4);
  const std::string flags = "--model mlp:64-24-20-16-10 --steps 3 ";
  const std::string line = std::to_string(ranks) + " ranks, as this machine has " +
                           std::to_string(cores) + (cores == 1 ? " core" : " cores");
  const Outcome chosen = train(flags + "--json");
  const Outcome typed = train(flags + "--json -p 3");

  ASSERT_EQ(chosen.code, 0) << chosen.errors;
  EXPECT_EQ(json::parse(chosen.out)["settings"]["ranks"], ranks);
  EXPECT_EQ(json::parse(chosen.out)["settings"]["micro_batches"], 8);
  EXPECT_THAT(chosen.errors, HasSubstr(line));
  EXPECT_THAT(typed.errors, Not(HasSubstr("as this machine has")));
  EXPECT_EQ(json::parse(chosen.out)["weights_hash"], json::parse(typed.out)["weights_hash"]);
}

TEST(Train, NeutralSettings_GiveOneHash) {
  std::string expected;
  for (const char* flags : {"-p 1 --executor sequential",
                            "-p 3 --schedule gpipe --executor ranks",
                            "-p 2 --schedule interleaved --recompute",
                            "-p 4 --schedule zb-h1 --partition 1,2,4",
                            "-p 2 --partition time"}) {
    const Outcome outcome = train(
        "--model mlp:64-24-20-16-10 --dropout 0.1 -m 4 --epochs 1 --json " + std::string(flags));
    ASSERT_EQ(outcome.code, 0) << outcome.errors;
    const std::string hash = json::parse(outcome.out)["weights_hash"];
    if (expected.empty()) expected = hash;
    EXPECT_EQ(hash, expected) << flags;
  }
}

TEST(Train, GivesOneHashForEveryCutWithEveryOptimizer) {
  for (const std::string optimizer : {"sgd", "momentum", "nesterov", "adam", "lamb", "lion"}) {
    std::string expected;
    for (const char* flags :
         {"-p 1 --executor sequential", "-p 2 --executor ranks", "-p 4 --schedule zb-h1"}) {
      const Outcome outcome =
          train("--model mlp:64-80-20-16-10 -m 4 --steps 3 --weight-decay 0.1 --json " +
                std::string(flags) + " --optimizer " + optimizer);
      ASSERT_EQ(outcome.code, 0) << outcome.errors;
      const std::string hash = json::parse(outcome.out)["weights_hash"];
      if (expected.empty()) expected = hash;
      EXPECT_EQ(hash, expected) << optimizer << ' ' << flags;
    }
  }
}

TEST(Train, LearnsTheDigits) {
  const Outcome outcome = train("--json");

  ASSERT_EQ(outcome.code, 0) << outcome.errors;
  EXPECT_GT(json::parse(outcome.out)["accuracy"], 0.96);
}

TEST(Train, LearnsIdxImagesWithTheNetworkOfTheTutorial) {
  const Folder folder("cli_idx");
  folder.write_gzip("train-images-idx3-ubyte.gz", idx_images(320, 28));
  folder.write("train-labels-idx1-ubyte", idx_labels(320));
  folder.write("t10k-images-idx3-ubyte", idx_images(50, 28));
  folder.write("t10k-labels-idx1-ubyte", idx_labels(50));
  const Outcome outcome = train("--model mlp:784-512-512-10 --data idx:" + folder.path() +
                                " -p 2 --batch-size 32 -m 4 --optimizer sgd"
                                " --lr 1e-2 --lr-schedule constant --warmup 0 --epochs 8 --json");

  ASSERT_EQ(outcome.code, 0) << outcome.errors;
  const json document = json::parse(outcome.out);
  EXPECT_LT(document["losses"].back(), 0.5 * document["losses"].front().get<double>());
  EXPECT_GT(document["accuracy"], 0.9);
}

TEST(Train, WritesTimelinePictureAndCosts) {
  const Folder folder("cli_files");
  const std::string trace = folder.path() + "/t.json";
  const std::string svg = folder.path() + "/t.svg";
  const std::string costs = folder.path() + "/c.json";
  const Outcome outcome =
      train(kSmall + "--trace " + trace + " --svg " + svg + " --profile " + costs);

  ASSERT_EQ(outcome.code, 0) << outcome.errors;
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("timeline written to " + trace), HasSubstr("test accuracy")));
  EXPECT_FALSE(json::parse(contents(trace)).empty());
  EXPECT_THAT(contents(svg), HasSubstr("<svg"));
  EXPECT_EQ(json::parse(contents(costs))["forward"].size(), 2U);
}

TEST(Train, TakesSettingsFromAFileBelowTheCommandLine) {
  const Folder folder("cli_config");
  const std::string file = folder.write("train.toml",
                                        "model = \"mlp:64-24-20-16-10\"\nranks = 3\n"
                                        "epochs = 1\nmicro-batches = 2\njson = true\n");
  const Outcome outcome = train("--config " + file + " -p 2");

  ASSERT_EQ(outcome.code, 0) << outcome.errors;
  const json settings = json::parse(outcome.out)["settings"];
  EXPECT_EQ(settings["ranks"], 2);
  EXPECT_EQ(settings["micro_batches"], 2);
  EXPECT_EQ(settings["epochs"], 1);
  const std::string wrong = folder.write("wrong.toml", "rnaks = 3\n");
  const Outcome refused = train("--config " + wrong);
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.errors, HasSubstr("rnaks: not an option of train; did you mean --ranks?"));
}

TEST(Train, TakesGroupsOfParametersOneAfterTheOther) {
  const std::string groups = " --parameters '*.bias:lr=2' --parameters 'layers.0.*:frozen'";
  const Outcome outcome = train(kSmall + "--json" + groups);
  ASSERT_EQ(outcome.code, 0) << outcome.errors;
  const json document = json::parse(outcome.out);
  EXPECT_EQ(document["settings"]["parameters"], (json{"*.bias:lr=2", "layers.0.*:frozen=yes"}));
  const Outcome plain = train(kSmall + "--json");
  EXPECT_NE(document["weights_hash"], json::parse(plain.out)["weights_hash"]);

  const Folder folder("cli_groups");
  const std::string file = folder.write(
      "train.toml", "parameters = [\"*.bias:lr=2,frozen=no\", \"layers.0.*:frozen\"]\n");
  const Outcome from_file = train(kSmall + "--json --config " + file);
  ASSERT_EQ(from_file.code, 0) << from_file.errors;
  EXPECT_EQ(json::parse(from_file.out)["weights_hash"], document["weights_hash"]);
}

/// The first line of a run of one step.
std::string first_line(const std::string& flags) {
  const Outcome outcome = train("--model mlp:64-24-20-16-10 -p 2 --steps 1 " + flags);
  EXPECT_EQ(outcome.code, 0) << outcome.errors;
  return outcome.out.substr(0, outcome.out.find('\n'));
}

TEST(Train, SaysTheEffectiveBatchAtTheStart) {
  EXPECT_EQ(first_line(""), "128 samples per update: 8 micro-batches of 16");
  EXPECT_EQ(first_line("--batch-size 100"),
            "100 samples per update: 8 micro-batches, 4 of 13 and 4 of 12");
  EXPECT_EQ(first_line("--effective-batch 100 -m 10 --micro-batch-size 10"),
            "100 samples per update: 10 micro-batches of 10");
  EXPECT_EQ(first_line("--micro-batch-size 5 -m 1"), "5 samples per update: 1 micro-batch of 5");
  EXPECT_EQ(first_line("--effective-batch 96 --micro-batch-size 8 -m 4 --accumulate 3"),
            "96 samples per update: 3 passes x 4 micro-batches of 8");
  EXPECT_EQ(first_line("--effective-batch 96 -d 2 -m 4 --accumulate 3"),
            "96 samples per update: 2 copies x 3 passes x 4 micro-batches of 4");
  EXPECT_EQ(first_line("--batch-size 5000 -m 3"),
            "1437 samples per update: 3 micro-batches of 479");
  EXPECT_EQ(first_line("--batch-size 512 --lr 0.001 --scale-lr-with-batch 128"),
            "512 samples per update: 8 micro-batches of 64; learning rate 0.004, scaled from 128 "
            "samples (linear)");
  EXPECT_EQ(first_line("--batch-size 512 --lr 0.001 --scale-lr-with-batch 128:sqrt"),
            "512 samples per update: 8 micro-batches of 64; learning rate 0.002, scaled from 128 "
            "samples (sqrt)");
}

TEST(Train, TakesTheEffectiveBatchForTheBatchSize) {
  const std::string job = "--model mlp:64-24-20-16-10 -p 2 -m 4 --steps 5 --json ";
  const auto hash_of = [](const Outcome& outcome) {
    EXPECT_EQ(outcome.code, 0) << outcome.errors;
    return json::parse(outcome.out)["weights_hash"].get<std::string>();
  };
  const std::string expected = hash_of(train("--batch-size 64 " + job));
  EXPECT_EQ(hash_of(train("--effective-batch 64 " + job)), expected);
  EXPECT_EQ(hash_of(train("--effective-batch 64 --micro-batch-size 16 " + job)), expected);
  EXPECT_EQ(hash_of(train("--micro-batch-size 16 " + job)), expected);
  EXPECT_EQ(hash_of(train("--batch-size 64 --lr 6e-3 --scale-lr-with-batch 128 " + job)), expected);
}

TEST(Train, AccumulatesOverPassesToTheSameBits) {
  const std::string job = "--model mlp:64-24-20-16-10 -p 2 --steps 15 --batch-size 100 --json ";
  const json one = json::parse(train(job + "-m 8").out);
  const json four = json::parse(train(job + "-m 2 --accumulate 4").out);
  EXPECT_EQ(four["settings"]["accumulate"], 4);
  EXPECT_EQ(four["weights_hash"], one["weights_hash"]);
  EXPECT_EQ(four["losses_hex"], one["losses_hex"]);
  EXPECT_EQ(four["peak_stash_bytes"]["counted"], four["peak_stash_bytes"]["predicted"]);
}

TEST(Train, BadInput_ExitsWith2) {
  const Folder folder("cli_bad");
  const std::string narrow = folder.write("narrow.csv", "1,2,0\n3,4,1\n");
  struct Case {
    std::string flags;
    std::string sentence;
  };
  for (const Case& bad : {
           Case{"-m 0", "-m 0: must be from 1"},
           Case{"-m 200", "-m 200: a mini-batch has 128 samples (--batch-size), so at most 128"},
           Case{
               "--effective-batch 100 --micro-batch-size 16",
               "--effective-batch 100: 100 samples per update are not 8 micro-batches of 16, which "
               "are 128; the nearest that fit are 96 with -m 6 and 112 with -m 7"},
           Case{"--batch-size 256 --micro-batch-size 16",
                "--batch-size 256: 256 samples per update are not 8 micro-batches of 16, which are "
                "128; they fit with -m 16"},
           Case{"--batch-size 8 --effective-batch 8", "give one of them"},
           Case{"--effective-batch 0", "--effective-batch 0: must be from 1"},
           Case{"--effective-batch 4",
                "-m 8: a mini-batch has 4 samples (--effective-batch), so at most 4"},
           Case{"--accumulate 0", "--accumulate 0: must be from 1 to 1000000"},
           Case{"--accumulate 2 -m 100",
                "-m 100 in each of 2 passes (--accumulate): a mini-batch has 128 samples "
                "(--batch-size), so at most 64"},
           Case{"--accumulate-order sideways",
                "unknown order of accumulation 'sideways'; known are ascending, tree"},
           Case{"--accumulate-order tree --schedule chimera",
                "--accumulate-order tree: a pipeline with 2 copies of each stage"},
           Case{"-d 0", "-d 0: must be from 1 to 4096"},
           Case{"-d 3",
                "--accumulate-order tree: 3 copies of the pipeline are no node of the tree each; 2 "
                "and 4 would be; or take ascending"},
           Case{"-d 64 -m 4",
                "-m 4 in each of 64 copies (-d): a mini-batch has 128 samples (--batch-size), so "
                "at most 2"},
           Case{"-d 2 --executor sequential",
                "--executor sequential: with -d 2 every place of every copy has a thread"},
           Case{"--accumulate 200",
                "--accumulate 200: a mini-batch has 128 samples (--batch-size), so at most 128"},
           Case{"--effective-batch 100 --micro-batch-size 8 --accumulate 2",
                "100 samples per update are not 2 passes x 8 micro-batches of 8, which are 128; "
                "the nearest that fit are 96 with -m 6 and 112 with -m 7"},
           Case{"--micro-batch-size 900000000", "--micro-batch-size 900000000: an effective batch"},
           Case{"--scale-lr-with-batch 0", "--scale-lr-with-batch 0: must be an integer"},
           Case{"--scale-lr-with-batch 8:log", "'log'; known are linear, sqrt"},
           Case{"--seed 99999999999999999999", "--seed 99999999999999999999: is out of range"},
           Case{"-p 9", "-p 9: the model has 8 layers, so at most 8"},
           Case{"-p 5 --schedule interleaved",
                "-p 5 with 2 chunks each: the model has 8 layers, so at most 4"},
           Case{"--data csv:" + narrow, "takes 64 features, but --data csv:" + narrow + " has 2"},
           Case{"--data csv:/nowhere.csv", "/nowhere.csv: cannot be read"},
           Case{"--model mlp:64-32-5", "has 5 classes, but --data digits has 10"},
           Case{"--schedule 1f1bb", "1f1b"},
           Case{"-v 2", "-v 2: schedule 1f1b has one stage per rank"},
           Case{"--executor ranksx",
                "--executor ranksx: must be one of flow-graph, ranks, sequential"},
           Case{"--optimizer adm", "known are sgd, momentum, nesterov, adam, adamw, lamb, lion"},
           Case{"--lr-schedule step:evry=1", "--lr-schedule step:evry=1: unknown setting 'evry'"},
           Case{"--parameters layers.0.*",
                "--parameters layers.0.*: expected names and their settings, as in"},
           Case{"--parameters layers.0.*:frozn",
                "unknown setting 'frozn'; the nearest of lr, weight-decay, frozen is 'frozen'"},
           Case{"--parameters layers.0.*:lr=-1", "lr must be at least 0 and finite, got -1"},
           Case{
               "--parameters layer.0.bias:lr=1",
               "--parameters layer.0.bias:lr=1: no parameter is called 'layer.0.bias'; the nearest "
               "of 16 is 'layers.0.bias'"},
           Case{"--lr -1", "--lr -1: must be at least 0"},
           Case{"--lr 1e999", "--lr 1e999: is out of range"},
           Case{"--dropout 1", "--dropout 1: must be at least 0 and below 1"},
           Case{"--momentum 1", "--momentum 1: must be at least 0 and below 1"},
           Case{"--momentum 0.5",
                "adamw has no such setting; those that have it are momentum, nes"},
           Case{"--beta1 -1", "--beta1 -1: must be at least 0 and below 1"},
           Case{"--beta2 1", "--beta2 1: must be at least 0 and below 1"},
           Case{"--epsilon 0", "--epsilon 0: must be above 0"},
           Case{"--clip-norm 0", "--clip-norm 0: must be above 0"},
           Case{"-p 4 --partition 1,2", "4 stages need 3 boundaries, found 2"},
           Case{"--partition 3,2,5", "--partition 3,2,5:"},
           Case{"--epochs 1 --steps 1", "give one of them"},
           Case{"--plan /nowhere.json",
                "--plan /nowhere.json cannot be read: No such file or directory"},
           Case{"--trace /nowhere/t.json",
                "--trace /nowhere/t.json cannot be written: No such file or directory"},
           Case{"--last-batch keep", "known are update, drop"},
           Case{"--batch-size 5000 --last-batch drop", "must be at most the 1437 training samples"},
       }) {
    const Outcome outcome = train(bad.flags);
    EXPECT_EQ(outcome.code, 2) << bad.flags;
    EXPECT_THAT(outcome.errors, HasSubstr(bad.sentence)) << bad.flags;
    EXPECT_EQ(std::count(outcome.errors.begin(), outcome.errors.end(), '\n'), 1) << outcome.errors;
    EXPECT_EQ(outcome.out, "") << bad.flags;
  }
}

}  // namespace
