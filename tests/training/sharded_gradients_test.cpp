// Gradients that go only to the copy of a pipeline that moves them: what is sent for it, and that
// everybody who looks at gradients still sees the whole sums. And what is sent where all go to all.
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/ids.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/graph.hpp"
#include "millrace/scheduler/plan/simulate.hpp"
#include "millrace/training/optimizer.hpp"
#include "millrace/training/ranks.hpp"
#include "millrace/training/records.hpp"
#include "millrace/training/trainer.hpp"
#include "tests/training/first_digits.hpp"
#include "tests/training/on_ranks.hpp"

namespace millrace::testing_training {
namespace {

using testing::HasSubstr;

constexpr int kUpdateLeaves = 8;  // micro-batches of an update
const char* const kLargeModel = "mlp:64-200-200-40-10";

/// Bytes sent by every process, by purpose.
struct SentBytes {
  std::array<std::atomic<std::size_t>, 8> gradients{}, shares{};
  struct Link {
    std::atomic<std::size_t> bytes = 0, messages = 0;
  };
  std::array<std::array<Link, 8>, 8> links{};  ///< of gradients, by sender and receiver

  [[nodiscard]] static std::size_t all(const std::array<std::atomic<std::size_t>, 8>& bytes) {
    return std::accumulate(bytes.begin(), bytes.end(), std::size_t{0});
  }
};

/// Gradients on their way to copies have numbers of replicas, collectives have none.
class Counted final : public Endpoint {
 public:
  Counted(std::unique_ptr<Endpoint> endpoint, SentBytes& sent)
      : endpoint_(std::move(endpoint)), sent_(sent) {}

  [[nodiscard]] Rank rank() const override { return endpoint_->rank(); }
  [[nodiscard]] int world() const override { return endpoint_->world(); }
  void send(Rank to, const MessageTag& tag, TensorList payload) override {
    const std::size_t own = rank().index();
    const bool collective = tag.direction == Direction::Collective;
    if (collective && tag.replica.value > 0) {
      sent_.gradients.at(own) += payload.bytes();
      sent_.links.at(own).at(to.index()).bytes += payload.bytes();
      ++sent_.links.at(own).at(to.index()).messages;
    } else if (collective && tag.slice.value == static_cast<int>(Label::OptimizerShards)) {
      sent_.shares.at(own) += payload.bytes();
    }
    endpoint_->send(to, tag, std::move(payload));
  }
  [[nodiscard]] TensorList receive(Rank from, const MessageTag& tag, Deadline deadline) override {
    return endpoint_->receive(from, tag, deadline);
  }
  [[nodiscard]] std::optional<TensorList> try_receive(Rank from, const MessageTag& tag) override {
    return endpoint_->try_receive(from, tag);
  }
  void cancel(const std::string& reason) noexcept override { endpoint_->cancel(reason); }
  void leave(Deadline deadline) override { endpoint_->leave(deadline); }

 private:
  std::unique_ptr<Endpoint> endpoint_;
  SentBytes& sent_;
};

struct CopiesJob {
  int copies = 2, places = 1;
  std::string schedule = "1f1b";
  std::string model = kLargeModel;
  bool is_sharded = true;
  AccumulateOrder order = AccumulateOrder::Tree;
  std::string loss_scale = "none";
  int inspected = 0;
  int steps = 3;
  std::vector<std::vector<std::string>> tied = {};
  std::vector<std::string> frozen = {};
};

TestOptions copies_options(const CopiesJob& job) {
  TestOptions options = plain_options(job.places, kUpdateLeaves / job.copies);
  options.step.accumulate_order = job.order;
  options.step.optimizer = optimizer_defaults(OptimizerKind::AdamW);
  options.step.learning_rate.base = 0.01;
  options.step.clip_norm = 0.5;
  options.step.loss_scale = parse_loss_scale(job.loss_scale);
  options.watch.inspect_gradients = job.inspected;
  options.fit.batch_size = 22;
  options.fit.steps = job.steps;
  options.step.shard_optimizer = job.is_sharded;
  options.step.tied = job.tied;
  for (const std::string& name : job.frozen)
    options.step.parameters.push_back({.pattern = name, .frozen = true});
  return options;
}

/// What every process tells; the same of all.
struct CopiesCourse {
  std::vector<double> losses, norms, factors, scales;
  std::vector<bool> skipped;
  std::vector<std::string> inspections;
  std::string weights;

  friend bool operator==(const CopiesCourse&, const CopiesCourse&) = default;
};

using Prepare = std::function<void(Trainer&, Rank process)>;

CopiesCourse course_of(const CopiesJob& job, const Prepare& prepare = {}, SentBytes* sent = {}) {
  const TestOptions options = copies_options(job);
  const Program program = generate(
      job.schedule, {.ranks = job.places, .micro_batches = options.pipeline.shape.micro_batches});
  const Grid grid(job.copies, job.places);
  SentBytes unheard;
  InProcessHub hub(grid.processes());
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  for (int rank = 0; rank < grid.processes(); ++rank)
    endpoints.push_back(
        std::make_unique<Counted>(hub.endpoint(Rank{rank}), sent ? *sent : unheard));
  std::mutex mutex;
  std::vector<CopiesCourse> all;
  on_ranks(std::move(endpoints), [&](Endpoint& endpoint, ProcessGroup& group) {
    const ModelSpec model = parse_model(job.model);
    Trainer trainer(rank_parts(model, {program}, options, GridPosition(endpoint, grid), group));
    CopiesCourse course;
    trainer.on_step = [&](const StepReport& step) {
      course.losses.push_back(step.mean_loss());
      course.norms.push_back(step.skipped ? 0 : step.gradient_norm);
      course.factors.push_back(step.clip_factor);
      course.scales.push_back(step.loss_scale);
      course.skipped.push_back(step.skipped);
    };
    trainer.on_gradients = [&](const GradientInspection& found) {
      course.inspections.push_back(to_string(found));
    };
    if (prepare) prepare(trainer, endpoint.rank());
    trainer.fit(first_digits(60));
    if (sent == nullptr) course.weights = trainer.weights_hash();
    const std::lock_guard lock(mutex);
    all.push_back(course);
  });
  EXPECT_EQ(all.size(), static_cast<std::size_t>(grid.processes()));
  for (const CopiesCourse& course : all) EXPECT_TRUE(course == all.front());
  return all.empty() ? CopiesCourse{} : all.front();
}

/// Elements of the large model, and blocks of its parameters, by hand.
constexpr std::size_t kElements = 65 * 200 + 201 * 200 + 201 * 40 + 41 * 10;
constexpr std::size_t kBlocks = (4 + 1) + (10 + 1) + (2 + 1) + (1 + 1);

TEST(ShardedGradients, MoveBytesOfReduceScatterAllGather) {
  for (const std::size_t copies : {2U, 4U, 8U}) {
    const std::size_t once = (copies - 1) * kElements * sizeof(float);
    CopiesJob job{.copies = static_cast<int>(copies), .steps = 1};
    SentBytes sharded, whole;
    course_of(job, {}, &sharded);
    job.is_sharded = false;
    course_of(job, {}, &whole);
    EXPECT_EQ(SentBytes::all(sharded.gradients), once);
    EXPECT_EQ(SentBytes::all(whole.gradients), 2 * once);
    EXPECT_EQ(SentBytes::all(whole.shares), 0U);
    // The values, and the sums of the norm's blocks, which the first copy has itself in part.
    EXPECT_GE(SentBytes::all(sharded.shares), once);
    EXPECT_LT(SentBytes::all(sharded.shares), once + kBlocks * sizeof(double));
    // Of every process: no share is larger than the others by more than a block.
    for (std::size_t copy = 0; copy < copies; ++copy)
      EXPECT_LE(sharded.gradients.at(copy) + sharded.shares.at(copy),
                2 * once / copies + copies * kNormBlock * sizeof(float));
  }
}

/// Bytes of gradients that the simulator has a process send to each process in one step.
std::array<double, 8> simulated_bytes(const Trainer& trainer, const Grid& grid, Rank process) {
  const Program& program = trainer.executor().program();
  const Shape& shape = program.shape;
  Cost cost = Cost::unit(shape);
  cost.data_parallel = grid.data();
  cost.bytes_per_tick = 1;
  cost.gradient_bytes.assign(static_cast<std::size_t>(shape.stages()), 0);
  for (const HostedStage& hosted : trainer.stages())
    for (const Parameter* parameter : hosted.body->parameters())
      cost.gradient_bytes[hosted.stage.index()] += static_cast<double>(parameter->gradient.bytes());
  const Graph graph(program);
  std::array<double, 8> bytes{};
  for (const StageSum& sum : stage_sums(graph, cost, std::get<Timeline>(simulate(graph, cost)))) {
    if (sum.rank != grid.place_of(process)) continue;
    const double of_others = (sum.time.end - sum.time.start) / (grid.data() - 1);
    for (int copy = 0; copy < grid.data(); ++copy)
      if (copy != grid.copy_of(process))
        bytes.at(grid.process(copy, sum.rank).index()) += of_others;
    for (int replica = 0; replica < shape.replicas(); ++replica)
      if (const Rank to = shape.rank(Replica{replica}, sum.stage); to != sum.rank)
        bytes.at(grid.process(grid.copy_of(process), to).index()) +=
            sum.given.end - sum.given.start;
  }
  return bytes;
}

TEST(GradientsOfCopies, Messages_AreThoseOfTheSimulator) {
  const Grid grid(2, 2);
  for (const char* const schedule : {"interleaved", "chimera", "dualpipe"}) {
    const bool both_ways = std::string(schedule) != "interleaved";
    std::mutex mutex;
    std::map<int, std::array<double, 8>> planned;
    SentBytes sent;
    course_of(
        {.places = 2,
         .schedule = schedule,
         .is_sharded = false,
         .order = AccumulateOrder::Ascending,
         .steps = 1},
        [&](Trainer& trainer, Rank process) {
          const std::lock_guard lock(mutex);
          planned[process.value] = simulated_bytes(trainer, grid, process);
        },
        &sent);
    ASSERT_EQ(planned.size(), 4U);
    for (int from = 0; from < 4; ++from)
      for (int to = 0; to < 4; ++to) {
        const SentBytes::Link& link =
            sent.links.at(static_cast<std::size_t>(from)).at(static_cast<std::size_t>(to));
        EXPECT_EQ(planned[from].at(static_cast<std::size_t>(to)), link.bytes)
            << schedule << " " << from << " to " << to;
        // Of two stages: two rounds with the other copy, and one message to the other replica.
        const bool is_copy = from % 2 == to % 2, is_replica = from / 2 == to / 2 && both_ways;
        const std::size_t expected = from == to ? 0 : is_copy ? 4 : is_replica ? 2 : 0;
        EXPECT_EQ(link.messages, expected) << schedule << " " << from << " to " << to;
      }
    const std::size_t once = 2 * kElements * sizeof(float);
    EXPECT_EQ(SentBytes::all(sent.gradients), both_ways ? 4 * once : once) << schedule;
  }
}

TEST(ShardedGradients, TiedWeights_HaveWholeGradients) {
  const std::vector<std::vector<std::string>> tied = {{"layers.1.weight", "layers.3.weight"}};
  CopiesJob job{.copies = 1,
                .places = 2,
                .model = "mlp:64-80-80-80-80-10",
                .is_sharded = false,
                .tied = tied};
  const CopiesCourse expected = course_of(job);
  job.is_sharded = true;
  for (const int copies : {2, 4}) {
    job.copies = copies;
    EXPECT_TRUE(course_of(job) == expected) << copies;
  }
}

TEST(ShardedGradients, HaveNormFactorAndScaleOfWhole) {
  CopiesJob job{.copies = 4, .frozen = {"layers.2.weight"}};
  for (const char* const scale :
       {"static:1024", "dynamic:initial=1e300,ceiling=1e300,backoff=1e-297"}) {
    job.loss_scale = scale;
    job.is_sharded = false;
    const CopiesCourse expected = course_of(job);
    job.is_sharded = true;
    EXPECT_TRUE(course_of(job) == expected) << scale;
    EXPECT_EQ(std::ranges::count(expected.skipped, true),
              std::string(scale).starts_with("dynamic") ? 1 : 0);
    EXPECT_LT(expected.factors.back(), 1);
  }
}

TEST(ShardedGradients, AddTheNormBlockByBlock) {
  // What is left is one parameter of ten blocks, of which several copies have some.
  const std::vector<std::string> others = {
      "layers.0.*", "layers.1.bias", "layers.2.*", "layers.3.*"};
  const CopiesCourse expected =
      course_of({.copies = 1, .is_sharded = false, .steps = 12, .frozen = others});
  for (const int copies : {2, 4, 8})
    EXPECT_EQ(course_of({.copies = copies, .steps = 12, .frozen = others}).norms, expected.norms)
        << copies;
}

TEST(ShardedGradients, ReplicaOrder_AddsUpToo) {
  CopiesJob job{.copies = 3, .places = 2, .is_sharded = false, .order = AccumulateOrder::Ascending};
  const CopiesCourse expected = course_of(job);
  job.is_sharded = true;
  EXPECT_TRUE(course_of(job) == expected);
}

TEST(ShardedGradients, LeaveRunningStatisticsWhole) {
  CopiesJob job{.copies = 1, .model = "conv:8x8x1-4-4-10", .is_sharded = false};
  const CopiesCourse expected = course_of(job);
  job = {.copies = 4, .model = job.model};
  EXPECT_EQ(course_of(job).weights, expected.weights);
}

TEST(ShardedGradients, AreWholeWhereTheyAreInspected) {
  CopiesJob job{.copies = 1, .is_sharded = false, .inspected = 2};
  const CopiesCourse expected = course_of(job);
  EXPECT_EQ(expected.inspections.size(), 2U);
  job = {.copies = 4, .inspected = 2};
  EXPECT_TRUE(course_of(job) == expected);
}

TEST(ShardedGradients, AreWholeForWhoChangesThem) {
  std::mutex mutex;
  std::map<std::string, int> seen;
  const auto reverse = [&](Trainer& trainer, Rank) {
    trainer.before_update = [&](std::span<Parameter* const> parameters) {
      for (Parameter* parameter : parameters) {
        const std::span<float> gradient = parameter->gradient.as<float>();
        std::ranges::reverse(gradient);
        const std::lock_guard lock(mutex);
        ++seen[parameter->name + " " + std::to_string(sum_of_squares(gradient))];
      }
    };
  };
  CopiesJob job{.copies = 1, .is_sharded = false, .loss_scale = "static:8"};
  const CopiesCourse expected = course_of(job, reverse);
  job.copies = 4;
  job.is_sharded = true;
  EXPECT_TRUE(course_of(job, reverse) == expected);
  for (const auto& [what, times] : seen) EXPECT_EQ(times, 5) << what;
}

TEST(ShardedGradients, AreWholeWhereOneProcessAloneLooks) {
  std::vector<double> squares;
  const auto look = [&](Trainer& trainer, Rank process) {
    if (process != Rank{1}) return;
    trainer.before_update = [&](std::span<Parameter* const> parameters) {
      squares.push_back(0);
      for (const Parameter* parameter : parameters)
        squares.back() += sum_of_squares(parameter->gradient.as<float>());
    };
  };
  const CopiesCourse course = course_of({.copies = 2}, look);
  EXPECT_EQ(course.weights, course_of({.copies = 2, .is_sharded = false}).weights);
  ASSERT_EQ(squares.size(), course.norms.size());
  for (std::size_t step = 0; step < squares.size(); ++step)
    EXPECT_EQ(std::sqrt(squares[step]), course.norms[step]);
}

}  // namespace
}  // namespace millrace::testing_training
