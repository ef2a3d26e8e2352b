// What workers compare before they begin: for every field a rank 0 that has another value, and the
// real command as rank 1, which must refuse with exit code 78 and the field's name.
#include <memory>

#include <gmock/gmock.h>

#include "cli/launched.hpp"
#include "millrace/core/error.hpp"
#include "millrace/stages/products.hpp"
#include "millrace/training/settings.hpp"
#include "millrace/transport/listener.hpp"
#include "millrace/transport/private_directory.hpp"
#include "millrace/transport/zeromq.hpp"
#include "support/free_address.hpp"

namespace millrace {
namespace {

using test::Command;
using test::Outcome;
using test::run;
using test::temporary;
using test::worker;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

/// Meets the worker that `command` starts, as rank 0 of a world of two with these fields; what
/// rank 0 says about it.
std::string host_says(const PrivateDirectory& place,
                      const HelloFields& fields,
                      std::chrono::seconds patience = std::chrono::seconds(20)) {
  ZeroMqOptions options;
  options.world = 2;
  options.directory = place.path();
  try {
    (void)meet({.url = "ipc://" + place.path() + "/rendezvous",
                .fields = fields,
                .join_timeout = patience},
               ZeroMqListener(options, std::make_shared<ZeroMqContext>()));
  } catch (const Mismatch& error) {
    return error.what();
  }
  return "they agree";
}

TEST(HandShake, DifferentField_ExitsWith78AndItsName) {
  std::vector<std::string> fields = {"library version",
                                     "processor",
                                     "compiled code",
                                     "products",
                                     "work",
                                     "schedule",
                                     "plan",
                                     "model",
                                     "cut",
                                     "data",
                                     "lengths",
                                     "data-parallel replicas",
                                     "precision",
                                     "checkpoint step"};
  for (const auto& setting : agreed_settings({})) fields.push_back(setting.first);
  for (const std::string& field : fields) {
    const PrivateDirectory place(temporary());
    Command command(worker(place, 1, 2, "train --steps 1"));
    const std::string said = host_says(place, {{field, "another value"}});
    const Outcome outcome = command.end();

    EXPECT_EQ(outcome.code, 78) << field << ": " << outcome.errors;
    const std::string sentence = field + " differs: rank 0 has 'another value', rank 1 has '";
    EXPECT_THAT(outcome.errors, HasSubstr("millrace: " + sentence));
    EXPECT_THAT(said, HasSubstr(sentence));
    // It said something of its own: the field is really in its hello.
    EXPECT_EQ(said.find(sentence + "'"), std::string::npos) << said;
  }
}

TEST(HandShake, OtherWorldSize_ExitsWith78) {
  const PrivateDirectory place(temporary());
  Command command(worker(place, 2, 3, "train --steps 1"));
  const std::string said = host_says(place, {}, std::chrono::seconds(2));
  const Outcome outcome = command.end();

  EXPECT_EQ(outcome.code, 78);
  EXPECT_THAT(outcome.errors, HasSubstr("world differs: rank 0 has '2', rank 2 has '3'"));
}

TEST(HandShake, CommandLines_AreCompared) {
  struct Pair {
    const char* mine;
    const char* theirs;
    const char* field;
  };
  for (const auto& [mine, theirs, field] :
       {Pair{"--seed 1", "--seed 2", "seed differs: rank 0 has '1', rank 1 has '2'"},
        Pair{"--schedule 1f1b", "--schedule gpipe", "schedule differs: rank 0 has '1f1b p=2 m=8'"},
        Pair{"-m 8", "-m 4", "rank 1 has '1f1b p=2 m=4'"},
        Pair{"--model mlp:64-8-8-10", "--model mlp:64-8-9-10", "model differs"},
        Pair{"--dropout 0.1", "--dropout 0.2", "model differs"},
        Pair{"--lr 1e-9", "--lr 2e-9", "learning rate differs"},
        Pair{"--parameters layers.0.bias:lr=0.1",
             "--parameters layers.0.bias:lr=0.2",
             "parameter groups differs: rank 0 has 'layers.0.bias:lr=0.1', rank 1 has"},
        Pair{"--lr-schedule step:every=3",
             "--lr-schedule step:every=4",
             "learning-rate schedule differs"},
        Pair{"--warmup 3", "--warmup 4", "warm-up differs"}}) {
    const PrivateDirectory place(temporary());
    Command other(worker(place, 1, 2, std::string("train --steps 9 ") + theirs));
    const Outcome outcome = run(worker(place, 0, 2, std::string("train --steps 9 ") + mine));

    EXPECT_EQ(outcome.code, 78) << mine;
    EXPECT_THAT(outcome.errors, HasSubstr(field));
    const Outcome told = other.end();
    EXPECT_EQ(told.code, 78) << theirs;
    EXPECT_THAT(told.errors, HasSubstr(field));
  }
}

TEST(HandShake, OtherGemmInstructions_AreRejected) {
  const bool follows_the_variable = product_libraries().starts_with("oneDNN");
  const PrivateDirectory place(temporary());
  Command other(worker(place, 1, 2, "train --steps 9"));
  ::setenv("DNNL_MAX_CPU_ISA", "SSE41", 1);  // NOLINT(concurrency-mt-unsafe)
  const Outcome outcome = run(worker(place, 0, 2, "train --steps 9"));
  ::unsetenv("DNNL_MAX_CPU_ISA");  // NOLINT(concurrency-mt-unsafe)

  EXPECT_EQ(outcome.code, follows_the_variable ? 78 : 0);
  EXPECT_EQ(other.end().code, outcome.code);
  if (!follows_the_variable) return;
  EXPECT_THAT(outcome.errors,
              AllOf(HasSubstr("products differs: rank 0 has 'oneDNN "), HasSubstr(" sse41 (")));
}

TEST(HandShake, DisagreeingIdentities_ExitWith78) {
  ::setenv("SLURM_PROCID", "1", 1);   // NOLINT(concurrency-mt-unsafe)
  ::setenv("SLURM_STEP_ID", "0", 1);  // NOLINT(concurrency-mt-unsafe)
  ::setenv("MILLRACE_RANK", "0", 1);  // NOLINT(concurrency-mt-unsafe)
  const Outcome outcome = run("worker --world 2 -- train --steps 1");
  const Outcome typed = run("worker --rank 0 --world 1 --endpoint ipc -- train --steps 1");
  ::unsetenv("MILLRACE_RANK");  // NOLINT(concurrency-mt-unsafe)
  ::unsetenv("SLURM_PROCID");   // NOLINT(concurrency-mt-unsafe)
  ::unsetenv("SLURM_STEP_ID");  // NOLINT(concurrency-mt-unsafe)

  EXPECT_EQ(outcome.code, 78);
  EXPECT_THAT(outcome.errors,
              HasSubstr("the rank is 0 by MILLRACE_RANK, but 1 by SLURM_PROCID; SLURM_PROCID=1 "
                        "is set in this shell: unset "));
  EXPECT_EQ(typed.code, 0) << typed.errors;
}

TEST(HandShake, TwoWorkersWithOneRank_ExitWith78) {
  const std::string common = "worker --world 3 --insecure --join-timeout 3600 --rendezvous " +
                             test::free_address() + " --rank ";
  Command first(common + "1 -- doctor"), second(common + "1 -- doctor");
  const Outcome host = run(common + "0 -- doctor");

  for (const Outcome& outcome : {host, first.end(), second.end()}) {
    EXPECT_EQ(outcome.code, 78) << outcome.errors;
    EXPECT_THAT(outcome.errors,
                ContainsRegex("two processes have rank 1: process [0-9]+ on .+ and process "
                              "[0-9]+ on .+"));
  }
}

TEST(HandShake, LaunchInBatchScript_NumbersItsRanks) {
  const std::string job = "launch -n 2 -- train --steps 1";
  ::setenv("SLURM_PROCID", "0", 1);  // NOLINT(concurrency-mt-unsafe)
  ::setenv("SLURM_NTASKS", "4", 1);  // NOLINT(concurrency-mt-unsafe)
  const Outcome script = run(job);
  ::setenv("SLURM_PROCID", "3", 1);   // NOLINT(concurrency-mt-unsafe)
  ::setenv("SLURM_STEP_ID", "0", 1);  // NOLINT(concurrency-mt-unsafe)
  const Outcome one_of_many = run(job);
  ::unsetenv("SLURM_PROCID");   // NOLINT(concurrency-mt-unsafe)
  ::unsetenv("SLURM_NTASKS");   // NOLINT(concurrency-mt-unsafe)
  ::unsetenv("SLURM_STEP_ID");  // NOLINT(concurrency-mt-unsafe)

  EXPECT_EQ(script.code, 0) << script.errors;
  EXPECT_EQ(one_of_many.code, 78);
  EXPECT_THAT(one_of_many.errors, HasSubstr("this is rank 3 by SLURM_PROCID, but launch starts"));
}

}  // namespace
}  // namespace millrace
