// Grids: ranks of a program mapped to processes. Data-parallel replicas share an endpoint's world
// and touch each other only where gradients are added; positions and grids that do not fit are
// refused.
#include "millrace/scheduler/run/grid.hpp"

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/run/executor.hpp"
#include "millrace/transport/in_process.hpp"
#include "run/toy_pipeline.hpp"
#include "transport/liveness/monitor.hpp"
#include "transport/wire/control.hpp"
#include "transport/wire/frame.hpp"

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing_run::Outcome;
using testing_run::ToyPipeline;

/// Other settings for every copy, so that a value which strays into another copy shows.
StepSettings settings_of(int copy) {
  StepSettings settings = ToyPipeline::settings();
  settings.loss_scale = 1.0 / (3 + copy);
  return settings;
}

std::vector<std::vector<float>> gradients_of(const ToyPipeline& pipeline, const Shape& shape) {
  std::vector<std::vector<float>> gradients;
  for (int replica = 0; replica < shape.replicas(); ++replica)
    for (int stage = 0; stage < shape.stages(); ++stage)
      gradients.push_back(pipeline.gradient(replica, stage));
  return gradients;
}

/// The gradients of one copy by itself.
std::vector<std::vector<float>> alone(const Program& program, int copy) {
  ToyPipeline pipeline(program.shape);
  const auto executor = make_executor(ExecutorKind::Sequential, program, pipeline.hosted);
  pipeline.zero_gradients();
  (void)executor->run(pipeline.data, settings_of(copy));
  return gradients_of(pipeline, program.shape);
}

/// Every (copy, place) on a thread of its own, all against one world.
std::vector<std::vector<std::vector<float>>> together(const Program& program, const Grid& grid) {
  InProcessHub hub(grid.processes());
  std::vector<std::unique_ptr<ToyPipeline>> copies;
  for (int copy = 0; copy < grid.data(); ++copy) {
    copies.push_back(std::make_unique<ToyPipeline>(program.shape));
    copies.back()->zero_gradients();
  }
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  std::vector<std::unique_ptr<Executor>> executors;
  for (int process = 0; process < grid.processes(); ++process) {
    endpoints.push_back(hub.endpoint(Rank{process}));
    const auto copy = static_cast<std::size_t>(grid.copy_of(Rank{process}));
    executors.push_back(
        make_rank_executor(program, copies[copy]->hosted, GridPosition(*endpoints.back(), grid)));
  }
  {
    std::vector<std::jthread> threads;
    for (int process = 0; process < grid.processes(); ++process)
      threads.emplace_back([&, process] {
        const int copy = grid.copy_of(Rank{process});
        (void)executors[static_cast<std::size_t>(process)]->run(
            copies[static_cast<std::size_t>(copy)]->data, settings_of(copy));
      });
  }
  std::vector<std::vector<std::vector<float>>> gradients;
  for (const auto& copy : copies) gradients.push_back(gradients_of(*copy, program.shape));
  return gradients;
}

/// What each copy has alone, added in the order of the copies.
std::vector<std::vector<float>> sum_of_copies(const Program& program, int copies) {
  std::vector<std::vector<float>> sum = alone(program, 0);
  for (int copy = 1; copy < copies; ++copy) {
    const auto term = alone(program, copy);
    for (std::size_t stage = 0; stage < sum.size(); ++stage)
      for (std::size_t i = 0; i < sum[stage].size(); ++i) sum[stage][i] += term[stage][i];
  }
  return sum;
}

TEST(Grid, EveryReplica_HasTheWholeSum) {
  for (const char* schedule : {"1f1b", "zb-h1", "interleaved", "chimera", "dualpipe"}) {
    SCOPED_TRACE(schedule);
    const Program program = generate(schedule, {.ranks = 2, .micro_batches = 4});
    const auto copies = together(program, Grid(3, 2));
    const auto expected = sum_of_copies(program, 3);
    ASSERT_EQ(copies.size(), 3U);
    EXPECT_EQ(copies[1], copies[0]);
    EXPECT_EQ(copies[2], copies[0]);
    if (program.shape.replicas() == 1) {
      EXPECT_EQ(copies[0], expected);
      continue;
    }
    // Data-parallel replicas are added first, then those of a stage.
    for (std::size_t stage = 0; stage < expected.size(); ++stage)
      for (std::size_t i = 0; i < expected[stage].size(); ++i)
        EXPECT_FLOAT_EQ(copies[0][stage][i], expected[stage][i]) << stage;
  }
}

/// A rank of the last data-parallel replica of a large grid. Its own pipeline is there; all others
/// have gradients of zero. What it sends must fit a frame and a heartbeat.
class RankOfLastReplica final : public Endpoint {
 public:
  /// `elements`: of the gradient of every stage.
  RankOfLastReplica(std::unique_ptr<Endpoint> inside, const Grid& grid, std::int64_t elements)
      : inside_(std::move(inside)), grid_(grid), elements_(elements) {}

  [[nodiscard]] Rank rank() const override { return grid_.process(last(), inside_->rank()); }
  [[nodiscard]] int world() const override { return grid_.processes(); }

  void send(Rank to, const MessageTag& tag, TensorList payload) override {
    DataHeader sent, received;
    sent.source = rank();
    sent.destination = to;
    sent.tag = tag;
    sent.absent = true;
    sent.tensor_count = 1;
    EXPECT_EQ(decode(encode(sent), 0, {0, 0, rank(), to, 0}, received), Refusal::None);
    EXPECT_EQ(received.tag, tag);
    if (grid_.copy_of(to) == last())
      return inside_->send(grid_.place_of(to), tag, std::move(payload));
    if (tag.micro_batch.value != 1) return;  // not our part, but the sum of our block
    own_[sum_of(tag)] -= payload[0].elements();
    parts_[{to, sum_of(tag)}] = std::move(payload);
  }

  [[nodiscard]] TensorList receive(Rank from, const MessageTag& tag, Deadline deadline) override {
    if (grid_.copy_of(from) == last()) return inside_->receive(grid_.place_of(from), tag, deadline);
    if (tag.micro_batch.value == 2) return std::move(parts_.at({from, sum_of(tag)}));  // as summed
    Tensor zeros(DType::F32, {elements_ + own_[sum_of(tag)]});
    zeros.fill_zero();
    return TensorList(std::move(zeros));
  }

  [[nodiscard]] std::optional<TensorList> try_receive(Rank from, const MessageTag& tag) override {
    if (grid_.copy_of(from) == last()) return inside_->try_receive(grid_.place_of(from), tag);
    return receive(from, tag, {});
  }

  void working(const Work& work) noexcept override {
    const Activity activity = activity_of(work);
    slot_.begin(activity);
    EXPECT_EQ(slot_.now().tag, activity.tag);
    Envelope envelope;
    Control heard;
    const ControlBytes bytes = encode(envelope, Progress{slot_.now(), {}});
    EXPECT_EQ(decode(bytes.header, {}, {0, 0, {}, {}, 0}, envelope, heard), Refusal::None);
    EXPECT_EQ(std::get<Progress>(heard).activity.tag, activity.tag);
    LivenessMonitor monitor(rank(), world(), std::chrono::steady_clock::now());
    monitor.note(rank(), slot_.now(), std::chrono::steady_clock::now());
    report = monitor.report(rank(), std::chrono::steady_clock::now());
  }

  void cancel(const std::string& reason) noexcept override { inside_->cancel(reason); }
  void leave(Deadline deadline) override { inside_->leave(deadline); }

  std::string report;

 private:
  using Sum = std::pair<int, int>;  // of a replica of a stage

  static Sum sum_of(const MessageTag& tag) { return {tag.replica.value, tag.stage.value}; }
  [[nodiscard]] int last() const { return grid_.data() - 1; }

  std::unique_ptr<Endpoint> inside_;
  const Grid grid_;
  const std::int64_t elements_;
  std::map<Sum, std::int64_t> own_;  // elements of our block, less those of a whole gradient
  std::map<std::pair<Rank, Sum>, TensorList> parts_;
  ProgressSlot slot_{""};
};

TEST(Grid, ReplicasFrom256On_FitFramesAndReports) {
  struct Case {
    const char* schedule;
    int replicas, pipeline;
  };
  for (const auto& [schedule, replicas, pipeline] :
       {Case{"1f1b", 256, 1}, Case{"1f1b", 257, 2}, Case{"chimera", 128, 2}}) {
    SCOPED_TRACE(schedule);
    const Grid grid(replicas, pipeline);
    const Program program = generate(schedule, {.ranks = pipeline, .micro_batches = 4});
    InProcessHub hub(pipeline);
    ToyPipeline toy(program.shape);
    toy.zero_gradients();
    std::vector<std::unique_ptr<RankOfLastReplica>> ends;
    std::vector<std::unique_ptr<Executor>> executors;
    for (int place = 0; place < pipeline; ++place) {
      ends.push_back(std::make_unique<RankOfLastReplica>(
          hub.endpoint(Rank{place}), grid, static_cast<std::int64_t>(toy.gradient(0, 0).size())));
      executors.push_back(
          make_rank_executor(program, toy.hosted, GridPosition(*ends.back(), grid)));
    }
    {
      std::vector<std::jthread> threads;
      for (const auto& executor : executors)
        threads.emplace_back([&] { (void)executor->run(toy.data, settings_of(replicas - 1)); });
    }
    EXPECT_EQ(gradients_of(toy, program.shape), alone(program, replicas - 1));
    for (const auto& end : ends)
      EXPECT_THAT(end->report,
                  HasSubstr("(data-parallel replica " + std::to_string(replicas - 1) + ")"));
  }
}

TEST(Grid, EveryProcessHasOnePlaceInOneCopy) {
  const Grid grid(3, 4);
  EXPECT_EQ(grid.processes(), 12);
  std::set<Rank> seen;
  for (int copy = 0; copy < 3; ++copy)
    for (int place = 0; place < 4; ++place) {
      const Rank process = grid.process(copy, Rank{place});
      EXPECT_EQ(grid.copy_of(process), copy);
      EXPECT_EQ(grid.place_of(process), Rank{place});
      EXPECT_TRUE(seen.insert(process).second);
    }
  EXPECT_EQ(seen.size(), 12U);
  EXPECT_EQ(*seen.rbegin(), Rank{11});
  EXPECT_THAT(grid.processes_of_copy(1), ElementsAre(Rank{4}, Rank{5}, Rank{6}, Rank{7}));
  EXPECT_THAT(grid.processes_at(Rank{1}), ElementsAre(Rank{1}, Rank{5}, Rank{9}));
}

template <class Make>
std::string refusal(Make make) {
  try {
    make();
  } catch (const InvalidArgument& refused) {
    return refused.what();
  }
  return "nothing was refused";
}

TEST(Grid, BadNumbers_AreRejectedWithAMessage) {
  EXPECT_THAT(refusal([] { (void)Grid(0, 4); }), HasSubstr("got 0 of 4"));
  EXPECT_THAT(refusal([] { (void)Grid(1 << 20, 1 << 20); }), HasSubstr("more processes"));
  InProcessHub hub(4);
  const auto endpoint = hub.endpoint(Rank{3});
  EXPECT_THAT(refusal([&] { (void)GridPosition(*endpoint, Grid(3, 2)); }),
              HasSubstr("there are 4 processes; the grid has 3 x 2 = 6"));
  const Program program = generate("1f1b", {.ranks = 4, .micro_batches = 4});
  ToyPipeline pipeline(program.shape);
  EXPECT_THAT(refusal([&] {
                (void)make_rank_executor(
                    program, pipeline.hosted, GridPosition(*endpoint, Grid(2, 2)));
              }),
              HasSubstr("pipelines have 2 places; the program has 4 ranks"));
  EXPECT_THAT(refusal([&] { (void)make_rank_executor(program, pipeline.hosted, GridPosition()); }),
              HasSubstr("needs an endpoint"));
}

TEST(Grid, ASeatKnowsItsOwnPlaceAndItsPeers) {
  InProcessHub hub(6);
  const auto endpoint = hub.endpoint(Rank{4});
  const GridPosition position(*endpoint, Grid(2, 3));
  EXPECT_EQ(position.place(), Rank{1});
  EXPECT_TRUE(position.hosts(Rank{1}));
  EXPECT_FALSE(position.hosts(Rank{0}));
  EXPECT_EQ(position.process(Rank{2}), Rank{5});
  EXPECT_TRUE(GridPosition().hosts(Rank{7}));
}

}  // namespace
}  // namespace millrace
