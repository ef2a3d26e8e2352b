// A stage with two outputs, one of which has no gradient: the first stage returns a hidden value
// and passes the raw input on, the second learns y = b (a x) + x. Targets are y = 7 x, so a b
// becomes 6.
#include <iostream>
#include <map>
#include <millrace/millrace.hpp>

namespace {

using namespace millrace;

Parameter scalar(const std::string& name, float start) {
  Parameter parameter{name, Tensor(DType::F32, {1}), Tensor(DType::F32, {1})};
  parameter.value.as<float>()[0] = start;
  parameter.gradient.fill_zero();
  return parameter;
}

float dot(const Tensor& a, const Tensor& b) {
  float sum = 0;
  for (std::size_t i = 0; i < a.as<float>().size(); ++i) sum += a.as<float>()[i] * b.as<float>()[i];
  return sum;
}

Tensor scaled(const Tensor& tensor, float factor) {
  Tensor product = tensor.clone();
  for (float& value : product.as<float>()) value *= factor;
  return product;
}

/// (x) -> (a x, x). The second output is data: its gradient stays
/// empty.
class Fork final : public StageBody {
 public:
  TensorList forward(const PassContext& context, TensorList inputs) override {
    TensorList outputs(scaled(inputs[0], a_.value.as<float>()[0]));
    outputs.push_back(inputs[0].clone());
    kept_[context.unit()].input = std::move(inputs[0]);
    return outputs;
  }

  TensorList backward_input(const PassContext& context, TensorList gradients) override {
    kept_[context.unit()].gradient = std::move(gradients[0]);
    return {};  // the first stage sends no gradient
  }

  void backward_weight(const PassContext& context) override {
    const Kept kept = std::move(kept_.extract(context.unit()).mapped());
    a_.gradient.as<float>()[0] += dot(kept.input, kept.gradient);
  }

  std::vector<Parameter*> parameters() override { return {&a_}; }
  void abandon_step() noexcept override { kept_.clear(); }

 private:
  struct Kept {
    Tensor input, gradient;
  };

  Parameter a_ = scalar("a", 1);
  std::map<Unit, Kept> kept_;
};

/// (h, x) -> the loss sum (b h + x - target)^2 / 2.
class Join final : public StageBody {
 public:
  TensorList forward(const PassContext& context, TensorList inputs) override {
    Kept& kept = kept_[context.unit()];
    kept.hidden = std::move(inputs[0]);
    kept.error = scaled(kept.hidden, b_.value.as<float>()[0]);
    const auto target = (*context.targets)[0].as<float>();
    for (std::size_t i = 0; i < target.size(); ++i) {
      float& error = kept.error.as<float>()[i];
      error += inputs[1].as<float>()[i] - target[i];
      context.loss->sum += 0.5 * error * error;
      context.loss->weight += 1;
      error *= static_cast<float>(context.loss_scale);  // the one place of scaling
    }
    return {};
  }

  TensorList backward_input(const PassContext& context, TensorList) override {
    TensorList gradients(scaled(kept_[context.unit()].error, b_.value.as<float>()[0]));
    gradients.push_back(Tensor());  // none for x
    return gradients;
  }

  void backward_weight(const PassContext& context) override {
    const Kept kept = std::move(kept_.extract(context.unit()).mapped());
    b_.gradient.as<float>()[0] += dot(kept.hidden, kept.error);
  }

  std::vector<Parameter*> parameters() override { return {&b_}; }
  void abandon_step() noexcept override { kept_.clear(); }

 private:
  struct Kept {
    Tensor hidden, error;
  };

  Parameter b_ = scalar("b", 2);
  std::map<Unit, Kept> kept_;
};

/// Twelve samples: x = 0.1, 0.2, ... and y = 7 x.
Dataset samples() {
  Dataset data = make_dataset("y = 7 x", Tensor(DType::F32, {12, 1}), Tensor(DType::F32, {12, 1}));
  for (std::size_t i = 0; i < 12; ++i) {
    const auto number = static_cast<float>(i + 1);
    data.inputs[0].values.as<float>()[i] = 0.1F * number;
    data.targets[0].values.as<float>()[i] = 0.7F * number;
  }
  return data;
}

void train(const std::string& schedule, const std::string& executor) {
  std::vector<std::unique_ptr<StageBody>> bodies;
  bodies.push_back(std::make_unique<Fork>());
  bodies.push_back(std::make_unique<Join>());
  TrainerOptions options;
  options.run.executor = executor;
  options.step.optimizer.kind = OptimizerKind::Sgd;
  options.step.learning_rate.base = 0.1;
  Trainer trainer(
      {generate(schedule, {.ranks = 2, .micro_batches = 4})}, std::move(bodies), options);
  Batch batch(samples(), 4);
  double loss = 0;
  for (int step = 0; step < 60; ++step) loss = trainer.step(batch).mean_loss();
  float product = 1;
  for (Parameter* parameter : trainer.state().parameters())
    product *= parameter->value.as<float>()[0];
  std::cout << schedule << " on " << executor << ": a b = " << product
            << (loss < 1e-9 ? ", trained" : ", not trained") << '\n';
}

}  // namespace

int main() {
  train("1f1b", "flow-graph");
  train("zb-h1", "ranks");
}
