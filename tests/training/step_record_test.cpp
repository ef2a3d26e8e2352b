// Records of steps: what is read from a timeline made by hand, that the parts add up to the whole,
// and that the texts of a record agree.
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/text.hpp"
#include "millrace/training/ranks.hpp"
#include "millrace/training/records.hpp"
#include "tests/training/first_digits.hpp"
#include "tests/training/on_ranks.hpp"
#include "training/watch/pass_use.hpp"

namespace millrace {
namespace {

using nlohmann::json;
using testing::DoubleEq;
using testing::DoubleNear;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;
using testing_training::first_digits;
using testing_training::kModel;
using testing_training::on_ranks;
using testing_training::plain_options;

PassUse use_of(const char* csv, const Timeline& timeline) {
  const ParsedProgram parsed = read_csv(csv);
  return pass_use(Graph(*parsed.program), timeline);
}

/// Simulated with these times (F 1 and 2, B 2 and 4) the pass takes 9: rank 0 is idle for 6 in its
/// gap, of which 1.5 vanish with equal stages (F 1.5, B 3); rank 1 waits 1 before and 2 after.
TEST(PassUse, IdleTime_HasCausesAndRest) {
  const PassUse use = use_of("0F0,0B0\n1F0,1B0\n", {{{{0, 1}, {8, 10}}, {{1, 3}, {3, 7}}}});

  EXPECT_EQ(use.makespan, 10);
  EXPECT_THAT(use.compute, ElementsAre(3, 6));
  EXPECT_THAT(use.transfer, ElementsAre(0, 0));
  const Bubble& first = use.bubble[0];
  EXPECT_THAT(first.imbalance, DoubleNear(1.5, 1e-12));
  EXPECT_THAT(first.dependency, DoubleNear(4.5, 1e-12));
  EXPECT_THAT(first.delay, DoubleNear(1, 1e-12));
  EXPECT_THAT(first.total(), DoubleNear(7, 1e-12));
  const Bubble& second = use.bubble[1];
  EXPECT_EQ(second.warm_up, 1);
  EXPECT_EQ(second.drain, 2);
  EXPECT_EQ(second.delay, 1);
  EXPECT_EQ(second.total(), 4);
}

/// The forward's message is sent at 1.5 and there at 2; the backward's at 8.25 and 9.
TEST(PassUse, CountsAMessageFromWhenItWasSent) {
  const PassUse use =
      use_of("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n",
             {{{{0, 1}, {1, 1.5}, {1.5, 9}, {9, 11}}, {{0, 2}, {2, 4}, {4, 8}, {8, 8.25}}}});

  EXPECT_EQ(use.makespan, 11);
  EXPECT_THAT(use.transfer, ElementsAre(1.25, 0.75));
  EXPECT_EQ(use.bubble[0].transfer, 1.25);
  EXPECT_THAT(use.bubble[0].delay, DoubleNear(0.75, 1e-12));
  EXPECT_EQ(use.bubble[1].warm_up, 1);
  EXPECT_EQ(use.bubble[1].drain, 2);
  EXPECT_EQ(use.bubble[1].delay, 1.25);
}

/// Also where one action took so long that the order with mean times is idle for longer.
TEST(PassUse, AnyTimes_AddUpToIdleTime) {
  std::mt19937 random(7);  // NOLINT(cert-msc51-cpp): the same numbers in every run
  std::uniform_real_distribution<double> between(0, 1);
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "chimera"}) {
    const Program program = generate(schedule, {.ranks = 4, .micro_batches = 4});
    for (int k = 0; k < 50; ++k) {
      Timeline timeline;
      for (const auto& list : program.ranks) {
        const double gaps = k % 2;  // without any, the order with mean times is idle for longer
        double time = gaps * between(random);
        auto& row = timeline.ranks.emplace_back();
        for (std::size_t i = 0; i < list.size(); ++i) {
          const double start = time + gaps * between(random) * between(random);
          time = start + std::pow(between(random), 4);
          row.push_back({start, time});
        }
      }
      const PassUse use = pass_use(Graph(program), timeline);
      for (std::size_t rank = 0; rank < use.bubble.size(); ++rank) {
        const Bubble& bubble = use.bubble[rank];
        EXPECT_THAT(bubble.total(), DoubleNear(use.makespan - use.compute[rank], 1e-9)) << schedule;
        for (const double part : {bubble.warm_up,
                                  bubble.drain,
                                  bubble.imbalance,
                                  bubble.dependency,
                                  bubble.transfer,
                                  bubble.delay})
          EXPECT_GE(part, 0) << schedule;
      }
    }
  }
}

/// Within rounding: a rank's times are the step's, its bubble is the passes' less its compute.
void expect_to_add_up(const StepRecord& record) {
  for (const RankRecord& rank : record.ranks) {
    EXPECT_THAT(rank.bubble.total(), DoubleNear(record.makespan - rank.times.compute, 1e-9));
    EXPECT_GT(rank.times.compute, 0);
    EXPECT_GT(rank.times.optimizer, 0);
    for (const double part : {rank.times.wait, rank.times.data, rank.times.save, rank.times.other})
      EXPECT_GE(part, 0);
  }
  EXPECT_GT(record.bubble(), 0);
  EXPECT_LT(record.bubble(), 1);
}

TestOptions recorded_options(int ranks, const std::string& executor = "sequential") {
  TestOptions options = plain_options(ranks, 4);
  options.run.executor = executor;
  options.fit.batch_size = 10;
  options.fit.epochs = 2;
  options.watch.records = true;
  return options;
}

struct Recorded {
  std::vector<StepRecord> records;
  std::vector<StepReport> reports;
  std::string hash;
};

Recorded recorded(const TestOptions& options) {
  Recorded all;
  Trainer trainer(parse_model(kModel), options.pipeline, options);
  trainer.on_step = [&](const StepReport& report) { all.reports.push_back(report); };
  trainer.on_record = [&](const StepRecord& record) {
    EXPECT_EQ(record.timeline, trainer.executor().timeline());
    all.records.push_back(record);
  };
  trainer.fit(first_digits(35));
  all.hash = trainer.weights_hash();
  return all;
}

void expect_a_record_of_every_step(const Recorded& all) {
  ASSERT_EQ(all.records.size(), 8U);
  for (std::size_t i = 0; i < all.records.size(); ++i) {
    const StepRecord& record = all.records[i];
    EXPECT_EQ(record.step, static_cast<std::int64_t>(i) + 1);
    EXPECT_EQ(record.report.loss.sum, all.reports[i].loss.sum);
    EXPECT_EQ(record.report.gradient_norm, all.reports[i].gradient_norm);
    EXPECT_GE(record.seconds, all.reports[i].seconds);
    ASSERT_EQ(record.ranks.size(), 2U);
    for (const RankRecord& rank : record.ranks)
      EXPECT_THAT(rank.times.total(), DoubleNear(record.seconds, 1e-9));
    expect_to_add_up(record);
  }
}

TEST(StepRecord, EveryStep_HasOneThatAddsUp) {
  for (const char* executor : {"sequential", "ranks"})
    expect_a_record_of_every_step(recorded(recorded_options(2, executor)));
}

/// Mini-batches that take their time.
class SlowLoader final : public BatchSource {
 public:
  SlowLoader(const Dataset& data, const LoaderOptions& options) : loader_(data, options) {}

  Batch& next() override {
    std::this_thread::sleep_for(std::chrono::milliseconds(4));
    return loader_.next();
  }

  [[nodiscard]] DataPosition position() const override { return loader_.position(); }
  void seek(const DataPosition& position) override { loader_.seek(position); }

 private:
  Loader loader_;
};

/// Whoever takes long finds at least that time in its own clock, and in no other.
TEST(StepRecord, SeparatesDataUpdateAndCallbacks) {
  const Dataset data = first_digits(35);
  Trainer trainer = trainer_of(parse_model(kModel), recorded_options(2));
  SlowLoader loader(data, trainer.loader_options());
  trainer.before_update = [](std::span<Parameter* const>) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  };
  trainer.on_step = [](const StepReport&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(6));
  };
  int records = 0;
  trainer.on_record = [&](const StepRecord& record) {
    ++records;
    const RankTimes& times = record.ranks[0].times;
    EXPECT_GE(times.data, 0.004);
    EXPECT_GE(times.wait, 0.005);
    EXPECT_GE(times.other, 0.006);
    EXPECT_GE(record.seconds, record.report.seconds + 0.01);
    // `other` is what is neither the step itself nor data nor a save.
    EXPECT_LE(times.other + times.data + times.save + record.ranks[0].times.optimizer,
              record.seconds - 0.005);
  };
  trainer.fit(loader);
  EXPECT_EQ(records, 8);
}

TEST(StepRecord, FlowGraph_RecordsEveryStep_flow_graph) {
  expect_a_record_of_every_step(recorded(recorded_options(2, "flow-graph")));
}

TEST(StepRecord, ChangesNoBits) {
  TestOptions without = recorded_options(2);
  without.watch.records = false;

  EXPECT_EQ(recorded(recorded_options(2)).hash, recorded(without).hash);
  EXPECT_THAT(recorded(without).records, testing::IsEmpty());
}

TEST(StepRecord, IsMadeInALoopOfTheUsersToo) {
  const Dataset data = first_digits(10);
  Trainer trainer = trainer_of(parse_model(kModel), recorded_options(2));
  std::vector<StepRecord> records;
  trainer.on_record = [&](const StepRecord& record) { records.push_back(record); };
  Batch batch(data, 4);
  trainer.step(batch);
  trainer.step(batch);

  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[1].step, 2);
  EXPECT_EQ(records[1].ranks[0].times.data, 0);
}

/// The last pass' timeline is there; times and makespan are those of both.
TEST(StepRecord, AddsUpOverThePassesOfAStep) {
  TestOptions options = recorded_options(2);
  options.step.accumulate = 2;
  const Recorded all = recorded(options);

  expect_a_record_of_every_step(all);
  for (const StepRecord& record : all.records) {
    double first = std::numeric_limits<double>::infinity(), last = 0, busy = 0;
    for (const Interval& interval : record.timeline.ranks[0]) busy += interval.end - interval.start;
    for (const auto& row : record.timeline.ranks) {
      first = std::min(first, row.front().start);
      last = std::max(last, row.back().end);
    }
    EXPECT_GT(record.makespan, last - first);
    EXPECT_GT(record.ranks[0].times.compute, busy);
  }
}

/// The first process has the record of all; its own times are the step's.
TEST(StepRecord, OfSeveralProcessesIsWithTheFirst) {
  const ModelSpec model = parse_model(kModel);
  const TestOptions options = recorded_options(3, "ranks");
  const Program program = generate("1f1b", {.ranks = 3, .micro_batches = 4});
  const Dataset data = first_digits(35);
  std::vector<StepRecord> records;
  std::string hash;
  on_ranks(3, [&](Endpoint& endpoint, ProcessGroup& group) {
    Trainer trainer(rank_parts(model, {program}, options, endpoint, group));
    trainer.on_record = [&](const StepRecord& record) {
      EXPECT_EQ(group.rank(), 0);
      records.push_back(record);
    };
    trainer.fit(data);
    const std::string mine = trainer.weights_hash();
    if (group.rank() == 0) hash = mine;
  });

  EXPECT_EQ(hash, recorded(recorded_options(3)).hash);
  ASSERT_EQ(records.size(), 8U);
  for (const StepRecord& record : records) {
    ASSERT_EQ(record.ranks.size(), 3U);
    expect_to_add_up(record);
    EXPECT_THAT(record.ranks[0].times.total(), DoubleNear(record.seconds, 1e-9));
    for (std::size_t rank = 0; rank < 3; ++rank)
      EXPECT_EQ(record.timeline.ranks[rank].size(),
                program.ranks[rank].size() * (rank == 1 ? 3 : 2));
    EXPECT_GT(record.ranks[1].times.transfer, 0);
  }
}

TEST(StepRecord, NeedsTimelineInAllProcesses) {
  TestOptions blind = recorded_options(2);
  blind.run.executor_options.record_timeline = false;
  EXPECT_THAT([&] { Trainer(parse_model(kModel), blind.pipeline, blind); },
              ThrowsMessage<InvalidArgument>(HasSubstr("record_timeline")));

  const ModelSpec model = parse_model(kModel);
  const Program program = generate("1f1b", {.ranks = 2, .micro_batches = 4});
  on_ranks(2, [&](Endpoint& endpoint, ProcessGroup& group) {
    TestOptions options = recorded_options(2, "ranks");
    options.watch.records = group.rank() == 1;
    EXPECT_THAT([&] { Trainer(rank_parts(model, {program}, options, endpoint, group)); },
                ThrowsMessage<Mismatch>(
                    HasSubstr("records differs: rank 0 has 'false', rank 1 has 'true'")));
  });
}

/// Two ranks and every field with a number of its own.
StepRecord record_of_numbers() {
  StepRecord record;
  record.step = 7;
  record.report.global_step = 6;
  record.report.samples = 10;
  record.report.loss = {1.0 / 3, 1, 2, 3};
  record.report.gradient_norm = std::numeric_limits<double>::infinity();
  record.report.learning_rate = 0.1;
  record.report.skipped = true;
  record.seconds = 0.3;
  record.ended = 1.7e9;
  record.restarts = 2;
  record.downtime = 4.5;
  record.makespan = 0.25;
  record.ranks.resize(2);
  record.ranks[1].rank = Rank{1};
  record.ranks[1].times = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7};
  record.ranks[1].bubble = {1e-7, 2e-7, 3e-7, 4e-7, 5e-7, 6e-7};
  return record;
}

std::vector<std::string> cells(const std::string& line) {
  std::vector<std::string> found;
  std::istringstream text(line + ",");
  for (std::string cell; std::getline(text, cell, ',');) found.push_back(cell);
  return found;
}

/// An object's scalars by their CSV name.
void flatten(const json& object, const std::string& prefix, std::map<std::string, json>& to) {
  for (const auto& [name, value] : object.items()) {
    if (value.is_object()) {
      flatten(value, prefix + name + ".", to);
    } else if (!value.is_array()) {
      to[prefix + name] = value;
    }
  }
}

TEST(StepRecordText, JsonAndCsv_SameNumbers) {
  const StepRecord record = record_of_numbers();
  const json object = json::parse(json_line(record));
  std::map<std::string, json> of_json;
  flatten(object, "", of_json);
  for (json rank : object["ranks"]) {
    const std::string prefix = "rank" + rank["rank"].dump() + ".";
    rank.erase("rank");
    rank.erase("copy");
    flatten(rank, prefix, of_json);
  }
  const auto names = cells(csv_columns(record));
  const auto values = cells(csv_line(record));

  ASSERT_EQ(names.size(), of_json.size());
  ASSERT_EQ(values.size(), names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    ASSERT_TRUE(of_json.contains(names[i])) << names[i];
    const json& value = of_json[names[i]];
    if (value.is_null()) {
      EXPECT_EQ(values[i], "") << names[i];
    } else if (value.is_boolean()) {
      EXPECT_EQ(values[i], value.dump()) << names[i];
    } else {
      EXPECT_EQ(std::stod(values[i]), value.get<double>()) << names[i];
    }
  }
  EXPECT_EQ(of_json["loss"].get<double>(), 1.0 / 3);
  EXPECT_TRUE(of_json["gradient_norm"].is_null());
  EXPECT_EQ(of_json["rank1.other"].get<double>(), 0.7);
  EXPECT_EQ(of_json["rank1.bubble.delay"].get<double>(), 6e-7);
  EXPECT_EQ(json_line(record).find('\n'), std::string::npos);
}

TEST(StepRecordText, Restarts_ComeBackAndMayBeMissing) {
  const StepRecord record = record_of_numbers();
  const std::string line = json_line(record);
  for (const StepRecord& read :
       {read_record(line), read_record(csv_line(record), csv_columns(record))}) {
    EXPECT_EQ(read.ended, 1.7e9);
    EXPECT_EQ(read.restarts, 2);
    EXPECT_EQ(read.downtime, 4.5);
  }
  std::string older = line;
  const auto from = older.find("\"ended\""), to = older.find("\"ranks\"");
  older.erase(from, to - from);
  EXPECT_EQ(read_record(older).restarts, 0);
  EXPECT_EQ(read_record(older).makespan, 0.25);
}

}  // namespace
}  // namespace millrace
