// The CSV for other engines: which schedules fit, which rule rejects the others, and the settings.
#include <algorithm>
#include <optional>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/text.hpp"
#include "support/small_programs.hpp"

namespace millrace {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using testing_plan::program;
using testing_plan::straight;

/// The message of what rejects the program; empty when it fits.
std::string fault(const Program& program, CsvEngine engine = CsvEngine::Torch) {
  try {
    static_cast<void>(write_engine_csv(program, engine));
    return "";
  } catch (const InvalidArgument& wrong) {
    return wrong.what();
  }
}

Program made(std::string_view name, int ranks, int micro_batches) {
  ScheduleOptions options;
  options.ranks = ranks;
  options.micro_batches = micro_batches;
  return generate(name, options);
}

/// The name behind "; nearest: ".
std::string nearest(const std::string& fault) {
  const std::string sign = "; nearest: ";
  const std::size_t at = fault.find(sign);
  return at == std::string::npos ? "" : fault.substr(at + sign.size());
}

TEST(EngineCsv, WholeCatalogue_FitsOrNearestDoes) {
  for (const CsvEngine engine : {CsvEngine::Torch, CsvEngine::Torchtitan, CsvEngine::Automodel}) {
    int fits = 0, rejected = 0;
    for (const ScheduleEntry& entry : schedules())
      for (const int p : {1, 2, 4, 5})
        for (const int m : {1, 4, 8, 16}) {
          std::optional<Program> program;
          try {
            program = made(entry.name, p, m);
          } catch (const InvalidArgument&) {
            continue;  // the schedule has no meaning for this shape
          }
          const std::string wrong = fault(*program, engine);
          ++(wrong.empty() ? fits : rejected);
          if (wrong.empty()) {
            const auto read = read_csv(write_engine_csv(*program, engine).csv);
            EXPECT_EQ(read.program->ranks, program->ranks);
          } else {
            EXPECT_EQ(fault(made(nearest(wrong), p, m), engine), "") << wrong;
          }
        }
    EXPECT_GT(fits, 200);
    EXPECT_GT(rejected, 40);
  }
}

TEST(EngineCsv, BrokenRule_IsNamedWithNearestSchedule) {
  EXPECT_EQ(fault(made("dualpipe", 2, 4)),
            "dualpipe p=2 m=4: PyTorch runs one replica of the model; nearest: dualpipe-v");
  EXPECT_EQ(fault(made("seq-1f1b", 2, 4)),
            "seq-1f1b p=2 m=4 q=2: PyTorch runs whole micro-batches, no slices; nearest: 1f1b");
  EXPECT_THAT(fault(made("forward", 2, 4)), HasSubstr("expects a backward pass for every forward"));
  EXPECT_THAT(fault(insert_recompute(made("1f1b", 2, 4))), HasSubstr("PyTorch has no action R"));
  EXPECT_EQ(fault(program(straight(2, 2), {"0F1 0F0 0B0 0B1", "1F1 1F0 1B0 1B1"})),
            "by hand: PyTorch needs the forward passes of the last stage in ascending order, else "
            "gradients are wrong; here 1F1 comes before 1F0; nearest: 1f1b");
  EXPECT_EQ(fault(program(straight(2, 2), {"0F1 0F0 0B1 0B0", "1F0 1F1 1B1 1B0"})), "");
  EXPECT_THAT(fault(program(straight(2, 1), {"0F0 0F0 0B0", "1F0 1B0"})),
              HasSubstr("PyTorch runs valid schedules, but 0F0 appears a second time"));
  EXPECT_THAT(fault(program(straight(2, 2), {"0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"})),
              HasSubstr("the order has a cycle"));
}

TEST(EngineCsv, PairWithoutSign_IsRefused) {
  Program split = program(straight(1, 2), {"0F0 0I0 0W0 0F1 0I1 0W1"});
  Action& weights = split.ranks[0][2];
  weights.with_next = true;  // W with the next F
  EXPECT_THAT(fault(split), HasSubstr("one F with one B or I, no other passes"));
  weights.with_next = false;
  split.ranks[0] = {split.ranks[0][0],
                    split.ranks[0][1],
                    split.ranks[0][3],
                    split.ranks[0][4],
                    split.ranks[0][2],
                    split.ranks[0][5]};
  split.ranks[0][3].with_next = true;  // I with the W of the other micro-batch
  EXPECT_THAT(fault(split), HasSubstr("one F with one B or I, no other passes"));
  split.ranks[0][3].with_next = false;
  split.ranks[0][1].with_next = true;  // I with the next F
  EXPECT_EQ(fault(split), "");
}

TEST(EngineCsv, Messages_AreLeftOut) {
  const Program passes = made("zb-v", 2, 4);

  EXPECT_EQ(write_engine_csv(insert_messages(insert_reductions(passes, 2)), CsvEngine::Torch).csv,
            write_csv(passes));
}

TEST(EngineCsv, Placements_AreThoseOfTheEngine) {
  Program uneven = program(straight(2, 1), {"0F0 1F0 2F0 2B0 1B0 0B0", "3F0 3B0"});
  uneven.shape.placement = Placement({{Rank{0}, Rank{0}, Rank{0}, Rank{1}}});
  ScheduleOptions waves;
  waves.ranks = 2;
  waves.micro_batches = 4;
  waves.waves = 2;
  const Program zigzag = generate("wave", waves);

  for (const Program* each : {&std::as_const(uneven), &zigzag}) {
    EXPECT_EQ(fault(*each), "");
    EXPECT_THAT(fault(*each, CsvEngine::Torchtitan),
                EndsWith("torchtitan has one stage per rank, a loop of stages (stage s on rank s "
                         "mod p), or a V of two stages per rank; nearest: interleaved"));
    EXPECT_THAT(fault(*each, CsvEngine::Automodel), HasSubstr("automodel has one stage"));
  }
}

TEST(EngineCsv, Settings_NameScheduleOfSamePlacement) {
  for (const auto& [schedule, name] : {std::pair{"zb-h1", "1F1B"},
                                       {"interleaved", "PipelineScheduleMulti"},
                                       {"dualpipe-v", "ZBVZeroBubble"}}) {
    const Program program = made(schedule, 2, 8);
    const std::string titan = write_engine_csv(program, CsvEngine::Torchtitan, "s.csv").settings;
    EXPECT_THAT(titan, HasSubstr(std::string("pipeline_parallel_schedule ") + name + "\n"));
    EXPECT_THAT(titan, HasSubstr("pipeline_parallel_schedule_csv s.csv\n"));
    EXPECT_THAT(write_engine_csv(program, CsvEngine::Automodel).settings,
                HasSubstr(std::string("    pp_schedule: ") + name + "\n"));
  }
  ScheduleOptions chunks;
  chunks.ranks = 2;
  chunks.micro_batches = 4;
  chunks.chunks = 3;
  EXPECT_THAT(write_engine_csv(generate("bfs", chunks), CsvEngine::Torchtitan).settings,
              HasSubstr("layers_per_stage makes 6 stages"));
  EXPECT_EQ(write_engine_csv(made("zb-v", 2, 4), CsvEngine::Torch, "s.csv").settings,
            "# torch 2.6 or later, 2 ranks; in Python millrace.torch.distributed.schedule does "
            "this\n"
            "schedule = _PipelineScheduleRuntime(stages, n_microbatches=4, loss_fn=loss_fn)\n"
            "schedule._load_csv(\"s.csv\")\n"
            "# stages of rank 0: 0 3\n"
            "# stages of rank 1: 1 2\n");
}

TEST(EngineCsv, UnknownEngine_NearestIsNamed) {
  EXPECT_EQ(parse_csv_engine("automodel"), CsvEngine::Automodel);
  EXPECT_THROW(static_cast<void>(parse_csv_engine("tochtitan")), InvalidArgument);
}

}  // namespace
}  // namespace millrace
