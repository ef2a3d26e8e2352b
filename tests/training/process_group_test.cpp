// One trainer per rank, each with its own stage and an endpoint: the group must agree on everything
// that a single process knows by itself.
#include "millrace/transport/process_group.hpp"

#include <chrono>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/stages/models.hpp"
#include "millrace/training/ranks.hpp"
#include "millrace/training/trainer.hpp"
#include "millrace/transport/in_process.hpp"
#include "support/test_options.hpp"

namespace millrace {
namespace {

constexpr int kSavedRanks = 3;

/// What every rank knows at the end.
struct Knowledge {
  std::string hash;
  std::vector<double> losses;
  std::vector<double> norms;
  std::vector<std::size_t> peaks;
  std::vector<std::int64_t> samples;
  std::int64_t correct = 0;
  std::int64_t predictions = 0;
  std::int64_t evaluated = 0;
  std::string failure;
  std::set<std::string> agreements;  // what this rank said in them
};

/// An endpoint that keeps the words of what is sent in collectives.
class Overheard final : public Endpoint {
 public:
  Overheard(Endpoint& endpoint, std::set<std::string>& words)
      : endpoint_(endpoint), words_(words) {}

  [[nodiscard]] Rank rank() const override { return endpoint_.rank(); }
  [[nodiscard]] int world() const override { return endpoint_.world(); }
  void send(Rank to, const MessageTag& tag, TensorList payload) override {
    if (tag.direction == Direction::Collective) words_.insert(to_string(tag));
    endpoint_.send(to, tag, std::move(payload));
  }
  [[nodiscard]] TensorList receive(Rank from, const MessageTag& tag, Deadline deadline) override {
    return endpoint_.receive(from, tag, deadline);
  }
  void cancel(const std::string& reason) noexcept override { endpoint_.cancel(reason); }
  void leave(Deadline deadline) override { endpoint_.leave(deadline); }

 private:
  Endpoint& endpoint_;
  std::set<std::string>& words_;
};

Dataset sixty_digits() {
  std::vector<std::int32_t> rows(60);
  std::iota(rows.begin(), rows.end(), 0);
  return select_rows(digits(), rows);
}

TestOptions options_of_all() {
  TestOptions options;
  options.pipeline.shape.ranks = kSavedRanks;
  options.pipeline.shape.micro_batches = 4;
  options.fit.batch_size = 25;
  options.fit.epochs = 2;
  options.step.clip_norm = 0.5;
  options.run.executor = "sequential";
  options.run.deadline = std::chrono::seconds(30);
  options.step.tied = {{"layers.2.weight", "layers.4.weight"}};  // on two ranks
  return options;
}

Knowledge learn(Trainer& trainer) {
  Knowledge known;
  const Dataset data = sixty_digits();
  trainer.on_step = [&](const StepReport& report) {
    known.losses.push_back(report.mean_loss());
    known.norms.push_back(report.gradient_norm);
    known.samples.push_back(report.samples);
    known.peaks = report.peak_stash_bytes;
  };
  trainer.fit(data);
  known.hash = trainer.weights_hash();
  const Score score = trainer.evaluate(data, 17);
  known.correct = score.loss.correct;
  known.predictions = score.loss.evaluated;
  known.evaluated = score.samples;
  return known;
}

Knowledge learn_as_rank(const ModelSpec& model, const Program& program, Endpoint& door) {
  std::set<std::string> agreements;
  Overheard endpoint(door, agreements);
  ProcessGroup group(endpoint, std::chrono::seconds(30));
  Trainer trainer(rank_parts(model, {program}, options_of_all(), endpoint, group));
  Knowledge known = learn(trainer);
  known.agreements = std::move(agreements);
  return known;
}

TEST(ProcessGroup, OneProcessPerRank_EqualsOneProcess) {
  const ModelSpec model = parse_model("mlp:64-16-16-16-10,dropout=0.1");
  const Program program = generate(
      "1f1b",
      {.ranks = kSavedRanks, .micro_batches = options_of_all().pipeline.shape.micro_batches});
  Trainer single(model, {program}, options_of_all());
  const Knowledge expected = learn(single);

  InProcessHub hub(kSavedRanks);
  std::vector<Knowledge> known(kSavedRanks);
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < kSavedRanks; ++rank)
    ranks.emplace_back([&, rank, endpoint = hub.endpoint(Rank{rank})] {
      Knowledge& mine = known[static_cast<std::size_t>(rank)];
      try {
        mine = learn_as_rank(model, program, *endpoint);
        endpoint->leave(std::chrono::steady_clock::now() + std::chrono::seconds(30));
      } catch (const std::exception& error) {
        mine.failure = error.what();
        endpoint->cancel(error.what());
      }
    });
  ranks.clear();

  for (const Knowledge& mine : known) {
    EXPECT_EQ(mine.failure, "");
    EXPECT_EQ(mine.hash, expected.hash);
    EXPECT_EQ(mine.losses, expected.losses);
    EXPECT_EQ(mine.norms, expected.norms);
    EXPECT_EQ(mine.peaks, expected.peaks);
    EXPECT_EQ(mine.samples, expected.samples);
    EXPECT_EQ(mine.correct, expected.correct);
    EXPECT_EQ(mine.predictions, 60);
    EXPECT_EQ(mine.evaluated, 60);
  }
  // What a report would name if somebody stopped there.
  for (const char* text : {"agreement on the parts of the model of step 0",
                           "agreement on the loss of step 0",
                           "agreement on the loss of step 5",
                           "agreement on tied weights of step 0",
                           "agreement on the gradient norm of step 5",
                           "agreement on the weights' hash of step 5",
                           "agreement on the loss of evaluation 3"})
    EXPECT_TRUE(known[1].agreements.contains(text)) << text;
}

}  // namespace
}  // namespace millrace
