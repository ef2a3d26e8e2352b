// Several stages with a loss: the trainer minimizes the sum over them of weight x mean loss, each
// mean over what its own losses weigh, and reports each.
#include <cmath>
#include <limits>
#include <map>

#include <gmock/gmock.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/training/ranks.hpp"
#include "millrace/training/trainer.hpp"
#include "training/on_ranks.hpp"

namespace millrace::sinks_test {
namespace {

using testing_training::on_ranks;

constexpr int kMicroBatches = 4;
constexpr int kSamples = 3;  // of a micro-batch
constexpr double kAux = 0.25;
constexpr float kRate = 0.1F;

float input_of(int micro_batch, int sample) {
  return 0.1F * static_cast<float>(1 + micro_batch * kSamples + sample);
}

/// y = w x; of a sink the sum of (y - x)^2 / 2, each sample with weight `counts`.
class Scale final : public StageBody {
 public:
  Scale(int number, double counts) : counts_(counts) {
    weight_ = {"w" + std::to_string(number), Tensor(DType::F32, {1}), Tensor(DType::F32, {1})};
    weight_.value.as<float>()[0] = static_cast<float>(2 + number);
    weight_.gradient.fill_zero();
  }

  TensorList forward(const PassContext& context, TensorList inputs) override {
    Kept& kept = kept_[context.unit()];
    kept.x = std::move(inputs[0]);
    Tensor y = kept.x.clone();
    for (float& value : y.as<float>()) value *= w();
    if (counts_ == 0) return TensorList(std::move(y));
    for (std::size_t i = 0; i < y.as<float>().size(); ++i) {
      float& error = y.as<float>()[i];
      error -= (*context.targets)[0].as<float>()[i];
      context.loss->sum += 0.5 * error * error;
      context.loss->weight += counts_;
      error *= static_cast<float>(context.loss_scale);
    }
    kept.of_y = std::move(y);
    return {};
  }

  TensorList backward_input(const PassContext& context, TensorList gradients) override {
    Kept& kept = kept_[context.unit()];
    if (counts_ == 0) kept.of_y = std::move(gradients[0]);
    Tensor of_x = kept.of_y.clone();
    for (float& value : of_x.as<float>()) value *= w();
    return TensorList(std::move(of_x));
  }

  void backward_weight(const PassContext& context) override {
    const Kept kept = std::move(kept_.extract(context.unit()).mapped());
    for (std::size_t i = 0; i < kept.x.as<float>().size(); ++i)
      weight_.gradient.as<float>()[0] += kept.x.as<float>()[i] * kept.of_y.as<float>()[i];
  }

  [[nodiscard]] std::vector<Parameter*> parameters() override { return {&weight_}; }
  [[nodiscard]] std::optional<double> loss_weight(const TensorList& targets) const override {
    return counts_ * static_cast<double>(targets[0].as<float>().size());
  }
  [[nodiscard]] std::size_t stashed_units() const override { return kept_.size(); }
  void abandon_step() noexcept override { kept_.clear(); }

 private:
  struct Kept {
    Tensor x, of_y;
  };

  [[nodiscard]] float w() const { return weight_.value.as<float>()[0]; }

  double counts_;
  Parameter weight_;
  std::map<Unit, Kept> kept_;
};

/// Stage 1 counts every sample twice.
std::unique_ptr<Scale> stage(int number) {
  return std::make_unique<Scale>(number, number == 0 ? 0 : number == 1 ? 2 : 1);
}

Dataset data() {
  Tensor x(DType::F32, {kMicroBatches * kSamples, 1}), t(DType::F32, {kMicroBatches * kSamples});
  for (int i = 0; i < kMicroBatches * kSamples; ++i)
    x.as<float>()[static_cast<std::size_t>(i)] = t.as<float>()[static_cast<std::size_t>(i)] =
        input_of(0, i);
  return make_dataset("line", std::move(x), std::move(t), 0);
}

Plan plan(const std::string& schedule) {
  Program program = generate(schedule, {.ranks = 3, .micro_batches = kMicroBatches});
  program.shape.edges = {{Stage{0}, 0, Stage{1}, 0}, {Stage{0}, 0, Stage{2}, 0}};
  program.shape.sinks = {Stage{1}, Stage{2}};
  return {program, {}};
}

TrainerOptions settings() {
  TrainerOptions options;
  options.step.optimizer = {.kind = OptimizerKind::Sgd};
  options.step.learning_rate = {.base = kRate};
  options.step.loss_weights = {kAux, 1};
  return options;
}

struct Trained {
  std::vector<float> weights;
  std::vector<double> losses;  // of the auxiliary stage, and of the main one, step after step

  friend bool operator==(const Trained&, const Trained&) = default;
};

constexpr int kSteps = 3;

/// No plan and no trainer.
Trained plain() {
  float w[] = {2, 3, 4};
  Trained trained;
  for (int step = 0; step < kSteps; ++step) {
    const int samples = kMicroBatches * kSamples;
    const auto aux_scale = static_cast<float>(kAux / (2 * samples));
    const auto main_scale = static_cast<float>(1.0 / samples);
    float g[] = {0, 0, 0};
    double aux = 0, main = 0;
    for (int i = 0; i < kMicroBatches; ++i) {
      double of_aux = 0, of_main = 0;
      for (int k = 0; k < kSamples; ++k) {
        const float x = input_of(i, k), y = x * w[0];
        float e1 = y * w[1] - x, e2 = y * w[2] - x;
        of_aux += 0.5 * e1 * e1;
        of_main += 0.5 * e2 * e2;
        e1 *= aux_scale;
        e2 *= main_scale;
        g[1] += y * e1;
        g[2] += y * e2;
        g[0] += x * (e1 * w[1] + e2 * w[2]);
      }
      aux += of_aux;
      main += of_main;
    }
    for (int k = 0; k < 3; ++k) w[k] -= kRate * g[k];
    trained.losses.push_back(aux / (2 * samples));
    trained.losses.push_back(main / samples);
  }
  trained.weights = {w[0], w[1], w[2]};
  return trained;
}

void run(Trainer& trainer, std::vector<double>& losses) {
  Batch batch(data(), kMicroBatches);
  for (int step = 0; step < kSteps; ++step) {
    const StepReport report = trainer.step(batch);
    ASSERT_EQ(report.other_losses.size(), 1U);
    losses.push_back(report.other_losses[0].sum / report.other_losses[0].weight);
    losses.push_back(report.mean_loss());
  }
}

void expect_close(const Trained& found, const Trained& expected) {
  EXPECT_THAT(found.weights, ::testing::Pointwise(::testing::FloatEq(), expected.weights));
  EXPECT_THAT(found.losses, ::testing::Pointwise(::testing::DoubleNear(1e-6), expected.losses));
}

TEST(Sinks, TrainerMinimizesTheWeightedSumOfMeanLosses) {
  const Trained expected = plain();
  std::optional<Trained> first;
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1"})
    for (const char* executor : {"sequential", "flow-graph", "ranks"}) {
      SCOPED_TRACE(std::string(schedule) + " " + executor);
      TrainerOptions options = settings();
      options.run.executor = executor;
      Bodies bodies;
      for (int number = 0; number < 3; ++number) bodies.push_back(stage(number));
      Trainer trainer(plan(schedule), std::move(bodies), options);
      Trained found;
      run(trainer, found.losses);
      for (const HostedStage& hosted : trainer.stages())
        found.weights.push_back(hosted.body->parameters()[0]->value.as<float>()[0]);
      expect_close(found, expected);
      if (!first) first = found;
      EXPECT_EQ(found, *first);
    }
}

TEST(Sinks, ProcessesKnowEveryLoss) {
  const Trained expected = plain();
  std::vector<Trained> found(3);
  on_ranks(3, [&](Endpoint& endpoint, ProcessGroup& group) {
    Bodies bodies;
    bodies.push_back(stage(endpoint.rank().value));
    Trainer trainer(rank_parts(plan("1f1b"), std::move(bodies), settings(), endpoint, group));
    run(trainer, found[endpoint.rank().index()].losses);
    found[endpoint.rank().index()].weights = {
        trainer.stages()[0].body->parameters()[0]->value.as<float>()[0]};
  });
  for (std::size_t rank = 0; rank < 3; ++rank)
    expect_close(found[rank], {{expected.weights[rank]}, expected.losses});
}

TEST(Sinks, AsManyWeightsAsLosses) {
  const auto refusal = [](std::vector<double> weights) -> std::string {
    TrainerOptions options = settings();
    options.step.loss_weights = std::move(weights);
    Bodies bodies;
    for (int number = 0; number < 3; ++number) bodies.push_back(stage(number));
    try {
      Trainer trainer(plan("1f1b"), std::move(bodies), options);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "nothing";
  };
  EXPECT_EQ(refusal({0, 1}), "nothing");
  EXPECT_EQ(refusal({1, 1, 1}), "got 3 loss weights; 2 of the stages have a loss");
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double weight : {-1.0, infinity, std::nan("")})
    EXPECT_EQ(refusal({weight, 1}), "loss_weights must be finite and at least 0");
}

}  // namespace
}  // namespace millrace::sinks_test
