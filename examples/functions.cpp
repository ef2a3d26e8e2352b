// A stage made of three functions, for an existing model; and three changes that a custom loop may
// make to an update: a learning rate by formula, a frozen weight, an inspection of gradients.
#include <iomanip>
#include <iostream>
#include <memory>
#include <millrace/millrace.hpp>
#include <string>
#include <vector>

namespace {

using namespace millrace;

Parameter scalar(const std::string& name, float value) {
  Parameter parameter{
      .name = name, .value = Tensor(DType::F32, {1}), .gradient = Tensor(DType::F32, {1})};
  parameter.value.as<float>()[0] = value;
  parameter.gradient.fill_zero();
  return parameter;
}

Tensor scaled(const Tensor& tensor, float factor) {
  Tensor product = tensor.clone();
  for (float& value : product.as<float>()) value *= factor;
  return product;
}

/// Turns predictions into the gradient of the loss sum (y - target)^2 / 2.
void add_loss(const PassContext& context, Tensor& predictions) {
  const auto target = (*context.targets)[0].as<float>();
  for (std::size_t i = 0; i < target.size(); ++i) {
    float& error = predictions.as<float>()[i];
    error -= target[i];
    context.loss->sum += 0.5 * error * error;
    context.loss->weight += 1;
    error *= static_cast<float>(context.loss_scale);  // the one place of scaling
  }
}

/// y = w x. `kept` belongs to the unit: the input, and from I on the gradient of the output.
std::unique_ptr<StageBody> multiply(Parameter& w, bool last) {
  return make_stage(
      {.forward =
           [&w, last](const PassContext& context, TensorList inputs, TensorList& kept) {
             Tensor y = scaled(inputs[0], w.value.as<float>()[0]);
             kept.push_back(std::move(inputs[0]));
             if (!last || !context.training) return TensorList(std::move(y));
             add_loss(context, y);
             kept.push_back(std::move(y));
             return TensorList();
           },
       .backward_input =
           [&w, last](const PassContext&, TensorList gradients, TensorList& kept) {
             if (!last) kept.push_back(std::move(gradients[0]));
             return TensorList(scaled(kept[1], w.value.as<float>()[0]));
           },
       .backward_weight =
           [&w](const PassContext&, TensorList& kept) {
             for (std::size_t i = 0; i < kept[0].as<float>().size(); ++i)
               w.gradient.as<float>()[0] += kept[0].as<float>()[i] * kept[1].as<float>()[i];
           }},
      {&w});
}

/// Twelve samples: x = 0.1, 0.2, ... and y = 6 x.
Dataset samples() {
  Dataset data = make_dataset("y = 6 x", Tensor(DType::F32, {12, 1}), Tensor(DType::F32, {12, 1}));
  for (std::size_t i = 0; i < 12; ++i) {
    const auto number = static_cast<float>(i + 1);
    data.inputs[0].values.as<float>()[i] = 0.1F * number;
    data.targets[0].values.as<float>()[i] = 0.6F * number;
  }
  return data;
}

void train(const std::string& schedule) {
  Parameter first = scalar("first", 1);
  Parameter second = scalar("second", 2);
  std::vector<std::unique_ptr<StageBody>> bodies;
  bodies.push_back(multiply(first, false));
  bodies.push_back(multiply(second, true));
  TrainerOptions options;
  options.step.optimizer.kind = OptimizerKind::Sgd;
  options.step.learning_rate.function = [](std::int64_t update) { return update < 60 ? 0.4 : 0.1; };
  options.step.parameters = {{.pattern = "first", .frozen = true}};
  Trainer trainer(
      {generate(schedule, {.ranks = 2, .micro_batches = 4})}, std::move(bodies), options);
  int seen = 0;
  trainer.before_update = [&](std::span<Parameter* const> parameters) {
    seen += static_cast<int>(parameters.size());
  };

  Batch batch(samples(), 4);
  for (int step = 0; step < 80; ++step) (void)trainer.step(batch);

  const std::vector<TensorList> predictions = trainer.predict(batch);
  std::cout << schedule << ": " << first.value.as<float>()[0] << " x "
            << second.value.as<float>()[0] << ", of 1.2 it makes "
            << predictions[3][0].as<float>()[2] << ", " << seen << " gradients seen\n";
}

}  // namespace

int main() {
  std::cout << std::setprecision(4);
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1"}) train(schedule);
}
