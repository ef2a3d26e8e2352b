// One process per rank, with custom stages. `millrace launch -n 2 -- ./worker` starts the processes
// and sets their ranks. At the end, each rank trains the same in one process, to show that the
// weights have the same bits.
#include <iostream>
#include <map>
#include <millrace/millrace.hpp>

namespace {

using namespace millrace;

/// y = w x, column by column; the last stage's loss is (sum of y - target)^2 / 2 per element.
class Scale final : public StageBody {
 public:
  Scale(int stage, int stages) : last_(stage + 1 == stages) {
    weight_ = {"scale." + std::to_string(stage), Tensor(DType::F32, {1}), Tensor(DType::F32, {1})};
    weight_.value.as<float>()[0] = 1.0F + static_cast<float>(stage);
    weight_.gradient.fill_zero();
  }

  TensorList forward(const PassContext& context, TensorList inputs) override {
    Tensor output = scaled(inputs[0]);
    Kept kept{std::move(inputs[0]), {}};
    if (last_ && context.targets != nullptr) {
      const auto target = (*context.targets)[0].as<float>();
      kept.error = output.clone();
      for (std::size_t i = 0; i < target.size(); ++i) {
        float& error = kept.error.as<float>()[i];
        error -= target[i];
        context.loss->sum += 0.5 * error * error;
        context.loss->weight += 1;
        error *= static_cast<float>(context.loss_scale);
      }
    }
    if (context.training) kept_[context.unit()] = std::move(kept);
    return last_ && context.training ? TensorList() : TensorList(std::move(output));
  }

  TensorList backward_input(const PassContext& context, TensorList gradients) override {
    Kept& kept = kept_[context.unit()];
    if (!last_) kept.error = std::move(gradients[0]);
    return TensorList(scaled(kept.error));
  }

  void backward_weight(const PassContext& context) override {
    const Kept kept = std::move(kept_.extract(context.unit()).mapped());
    for (std::size_t i = 0; i < kept.input.as<float>().size(); ++i)
      weight_.gradient.as<float>()[0] += kept.input.as<float>()[i] * kept.error.as<float>()[i];
  }

  std::vector<Parameter*> parameters() override { return {&weight_}; }
  void abandon_step() noexcept override { kept_.clear(); }

 private:
  struct Kept {
    Tensor input, error;
  };

  Tensor scaled(const Tensor& tensor) const {
    Tensor product = tensor.clone();
    for (float& value : product.as<float>()) value *= weight_.value.as<float>()[0];
    return product;
  }

  bool last_;
  Parameter weight_;
  std::map<Unit, Kept> kept_;
};

/// Eight samples: x = 0.1, 0.2, ... and y = 6 x.
Dataset samples() {
  Dataset data = make_dataset("y = 6 x", Tensor(DType::F32, {8, 1}), Tensor(DType::F32, {8, 1}));
  for (std::size_t i = 0; i < 8; ++i) {
    const auto number = static_cast<float>(i + 1);
    data.inputs[0].values.as<float>()[i] = 0.1F * number;
    data.targets[0].values.as<float>()[i] = 0.6F * number;
  }
  return data;
}

TrainerOptions options() {
  TrainerOptions options;
  options.step.learning_rate.base = 0.1;
  options.step.optimizer.kind = OptimizerKind::Sgd;
  return options;
}

/// Settings that the ranks compare in addition to those of a trainer.
HelloFields fields() {
  HelloFields fields = build_fields();
  fields.emplace_back("samples", "8 of y = 6 x");
  return fields;
}

// The worker: 15 lines from the launch to trained weights.
std::string worker(JoinedRank& rank) {
  const Program program = generate("1f1b", {.ranks = rank.world(), .micro_batches = 4});
  Bodies mine;
  mine.push_back(std::make_unique<Scale>(rank.rank().value, rank.world()));
  Trainer trainer(rank_parts({program}, std::move(mine), options(), rank.endpoint(), rank.group()));
  Batch batch(samples(), 4);
  StepReport report;
  for (int step = 0; step < 30; ++step) report = trainer.step(batch);
  std::cout << "rank " << rank.rank().value
            << (report.mean_loss() < 1e-6 ? ": learned" : ": still learning") << std::endl;
  std::string weights = trainer.weights_hash();  // of all ranks
  rank.leave();
  return weights;
}

std::string one_process(int stages) {
  Bodies all;
  for (int stage = 0; stage < stages; ++stage)
    all.push_back(std::make_unique<Scale>(stage, stages));
  Trainer trainer(
      {generate("1f1b", {.ranks = stages, .micro_batches = 4})}, std::move(all), options());
  Batch batch(samples(), 4);
  for (int step = 0; step < 30; ++step) (void)trainer.step(batch);
  return trainer.weights_hash();
}

}  // namespace

// The launcher uses the exit code to name the rank that failed.
int main() {
  try {
    JoinedRank rank = join_launch({.fields = fields()});
    const std::string weights = worker(rank), same = one_process(rank.world());
    std::cout << "same weights as one process: " << (weights == same ? "yes" : "no") << std::endl;
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return exit_code_of(error);
  }
}
