// Custom stages and a custom training loop, without a change to the library: a chain of two scalar
// multiplications y = w1 (w0 x) learns y = 6 x by plain gradient descent, with any schedule.
#include <iomanip>
#include <iostream>
#include <map>
#include <millrace/millrace.hpp>

namespace {

using namespace millrace;

/// y = w x for a column of numbers; the last stage owns the loss sum (y - target)^2 / 2.
class Multiply final : public StageBody {
 public:
  Multiply(const std::string& name, float start, bool last) : last_(last) {
    weight_ = {name, Tensor(DType::F32, {1}), Tensor(DType::F32, {1})};
    weight_.value.as<float>()[0] = start;
    weight_.gradient.fill_zero();
  }

  TensorList forward(const PassContext& context, TensorList inputs) override {
    Kept& kept = kept_[context.unit()];
    kept.input = std::move(inputs[0]);
    Tensor output = scaled(kept.input, weight_.value.as<float>()[0]);
    if (!last_) return TensorList(std::move(output));
    kept.output_gradient = std::move(output);
    auto error = kept.output_gradient.as<float>();
    const auto target = (*context.targets)[0].as<float>();
    for (std::size_t i = 0; i < error.size(); ++i) {
      error[i] -= target[i];
      context.loss->sum += 0.5 * error[i] * error[i];
      context.loss->weight += 1;
      error[i] *= static_cast<float>(context.loss_scale);  // the one place of scaling
    }
    return {};
  }

  TensorList backward_input(const PassContext& context, TensorList gradients) override {
    Kept& kept = kept_[context.unit()];
    if (!last_) kept.output_gradient = std::move(gradients[0]);
    return TensorList(scaled(kept.output_gradient, weight_.value.as<float>()[0]));
  }

  void backward_weight(const PassContext& context) override {
    const Kept kept = std::move(kept_.extract(context.unit()).mapped());
    const auto input = kept.input.as<float>();
    const auto gradient = kept.output_gradient.as<float>();
    for (std::size_t i = 0; i < input.size(); ++i)
      weight_.gradient.as<float>()[0] += input[i] * gradient[i];
  }

  [[nodiscard]] std::vector<Parameter*> parameters() override { return {&weight_}; }
  [[nodiscard]] std::size_t stashed_units() const override { return kept_.size(); }
  void abandon_step() noexcept override { kept_.clear(); }

 private:
  struct Kept {
    Tensor input, output_gradient;
  };

  static Tensor scaled(const Tensor& tensor, float factor) {
    Tensor product = tensor.clone();
    for (float& value : product.as<float>()) value *= factor;
    return product;
  }

  bool last_;
  Parameter weight_;
  std::map<Unit, Kept> kept_;
};

/// Four micro-batches of three samples: x = 0.1, 0.2, ... and y = 6 x.
class Samples final : public StepData {
 public:
  TensorList inputs(const Unit& unit) override { return column(unit, 0.1F); }
  TensorList targets(const Unit& unit) override { return column(unit, 0.6F); }
  [[nodiscard]] std::int64_t first_sample(const Unit& unit) const override {
    return 3 * unit.micro_batch.value;
  }

 private:
  [[nodiscard]] TensorList column(const Unit& unit, float step) const {
    Tensor tensor(DType::F32, {3});
    for (int i = 0; i < 3; ++i)
      tensor.as<float>()[static_cast<std::size_t>(i)] =
          step * static_cast<float>(first_sample(unit) + i + 1);
    return TensorList(std::move(tensor));
  }
};

void train(const std::string& schedule) {
  Multiply first("first", 1, false), second("second", 2, true);
  const std::vector<HostedStage> stages = {{Replica{0}, Stage{0}, &first},
                                           {Replica{0}, Stage{1}, &second}};
  const auto executor = make_executor(
      ExecutorKind::FlowGraph, generate(schedule, {.ranks = 2, .micro_batches = 4}), stages);

  Samples samples;
  double loss = 0;
  for (std::uint64_t step = 0; step < 40; ++step) {
    const StepResult result = executor->run(samples, {.step = step, .loss_scale = 1.0 / 12});
    loss = result.loss.sum / result.loss.weight;
    for (Multiply* stage : {&first, &second}) {
      Parameter& weight = *stage->parameters().front();
      weight.value.as<float>()[0] -= 0.1F * weight.gradient.as<float>()[0];
      weight.gradient.fill_zero();
    }
  }
  const float product =
      first.parameters()[0]->value.as<float>()[0] * second.parameters()[0]->value.as<float>()[0];
  std::cout << schedule << ": w0 w1 = " << product << ", loss " << std::hexfloat << loss
            << std::defaultfloat << '\n';
}

/// Compares the gradients of a stage with central differences.
void check(StageBody& stage, const TensorList& inputs) {
  const GradientCheck gradients = check_gradients(stage, inputs);  // last stage: also its targets
  if (!gradients.holds()) std::cout << to_string(gradients);
}

}  // namespace

int main() {
  std::cout << std::setprecision(4);
  Multiply stage("checked", 2, false);
  check(stage, Samples().inputs({}));
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1"}) train(schedule);
}
