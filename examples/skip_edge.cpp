// A skip edge: the output of stage 0 goes to stage 1 and directly to stage 2, which adds both, as a
// residual connection does. The edges are data of the plan; the stages do not know them.
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

/// y = w (x0 + x1 + ...), with the loss sum (y - target)^2 / 2 in the last stage. `kept` has the
/// sum of the inputs, then the gradient of y; every input gets the same gradient.
std::unique_ptr<StageBody> multiply_sum(Parameter& w, std::size_t inputs, bool last) {
  return make_stage(
      {.forward =
           [&w, last](const PassContext& context, TensorList given, TensorList& kept) {
             Tensor sum = given[0].clone();
             for (std::size_t k = 1; k < given.size(); ++k)
               for (std::size_t i = 0; i < sum.as<float>().size(); ++i)
                 sum.as<float>()[i] += given[k].as<float>()[i];
             Tensor y = sum.clone();
             for (float& value : y.as<float>()) value *= w.value.as<float>()[0];
             kept.push_back(std::move(sum));
             if (!last) return TensorList(std::move(y));
             const auto target = (*context.targets)[0].as<float>();
             for (std::size_t i = 0; i < target.size(); ++i) {
               float& error = y.as<float>()[i];
               error -= target[i];
               context.loss->sum += 0.5 * error * error;
               context.loss->weight += 1;
               error *= static_cast<float>(context.loss_scale);  // the one place of scaling
             }
             kept.push_back(std::move(y));
             return TensorList();
           },
       .backward_input =
           [&w, inputs, last](const PassContext&, TensorList gradients, TensorList& kept) {
             if (!last) kept.push_back(std::move(gradients[0]));
             TensorList given;
             for (std::size_t k = 0; k < inputs; ++k) {
               given.push_back(kept[1].clone());
               for (float& value : given[k].as<float>()) value *= w.value.as<float>()[0];
             }
             return given;
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
  Program program = generate(schedule, {.ranks = 3, .micro_batches = 4});
  // From stage, output; to stage, input.
  program.shape.edges = {
      {Stage{0}, 0, Stage{1}, 0}, {Stage{1}, 0, Stage{2}, 0}, {Stage{0}, 0, Stage{2}, 1}};
  if (!verify(program).empty()) return;
  std::vector<Parameter> weights;
  for (const char* name : {"a", "b", "c"}) weights.push_back(scalar(name, 1));
  std::vector<std::unique_ptr<StageBody>> bodies;
  bodies.push_back(multiply_sum(weights[0], 1, false));
  bodies.push_back(multiply_sum(weights[1], 1, false));
  bodies.push_back(multiply_sum(weights[2], 2, true));
  TrainerOptions options;
  options.step.optimizer.kind = OptimizerKind::Sgd;
  options.step.learning_rate.base = 0.05;
  Trainer trainer({program}, std::move(bodies), options);
  Batch batch(samples(), 4);
  for (int step = 0; step < 40; ++step) (void)trainer.step(batch);

  const auto value = [&](std::size_t i) { return weights[i].value.as<float>()[0]; };
  std::cout << schedule << ": c (a + b a) = " << value(2) * (value(0) + value(1) * value(0))
            << ", a " << value(0) << ", b " << value(1) << ", c " << value(2) << "\n";
}

}  // namespace

int main() {
  std::cout << std::setprecision(4);
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1"}) train(schedule);
}
