// Weights and gradients in the memory of another engine: tensors wrap its raw pointers, the
// pipeline accumulates into the engine's flat gradient buffer, and the engine's optimizer reads
// that buffer. Nothing is copied.
#include <array>
#include <iostream>
#include <map>
#include <millrace/millrace.hpp>

namespace {

using namespace millrace;

constexpr std::size_t kStages = 2;

/// The engine's memory: one flat block of weights, one of gradients, a number per stage.
struct Engine {
  alignas(kAlignment) std::array<float, kStages> weights{1, 2};
  alignas(kAlignment) std::array<float, kStages> gradients{};

  void sgd(float rate) {
    for (std::size_t i = 0; i < kStages; ++i) weights[i] -= rate * gradients[i];
    gradients.fill(0);
  }
};

/// Borrows one number: with a null release, the owner keeps the memory.
Tensor wrap(float* number) {
  return {DType::F32, {1}, number, nullptr, nullptr};
}

/// y = w x with the engine's w; the last stage owns the loss sum (y - target)^2 / 2.
class Multiply final : public StageBody {
 public:
  Multiply(Engine& engine, std::size_t stage)
      : last_(stage + 1 == kStages),
        weight_{"w" + std::to_string(stage),
                wrap(&engine.weights[stage]),
                wrap(&engine.gradients[stage])} {}

  TensorList forward(const PassContext& context, TensorList inputs) override {
    Tensor output = scaled(inputs[0]);
    Kept& kept = kept_[context.unit()];
    kept.input = std::move(inputs[0]);
    if (!last_) return TensorList(std::move(output));
    const auto target = (*context.targets)[0].as<float>();
    for (std::size_t i = 0; i < target.size(); ++i) {
      float& error = output.as<float>()[i];
      error -= target[i];
      context.loss->sum += 0.5 * error * error;
      context.loss->weight += 1;
      error *= static_cast<float>(context.loss_scale);
    }
    kept.gradient = std::move(output);
    return {};
  }

  TensorList backward_input(const PassContext& context, TensorList gradients) override {
    Kept& kept = kept_[context.unit()];
    if (!last_) kept.gradient = std::move(gradients[0]);
    return TensorList(scaled(kept.gradient));
  }

  void backward_weight(const PassContext& context) override {
    const Kept kept = std::move(kept_.extract(context.unit()).mapped());
    for (std::size_t i = 0; i < kept.input.as<float>().size(); ++i)
      weight_.gradient.as<float>()[0] += kept.input.as<float>()[i] * kept.gradient.as<float>()[i];
  }

  std::vector<Parameter*> parameters() override { return {&weight_}; }
  void abandon_step() noexcept override { kept_.clear(); }

 private:
  struct Kept {
    Tensor input, gradient;
  };

  [[nodiscard]] Tensor scaled(const Tensor& tensor) const {
    Tensor product = tensor.clone();
    for (float& value : product.as<float>()) value *= weight_.value.as<float>()[0];
    return product;
  }

  bool last_;
  Parameter weight_;
  std::map<Unit, Kept> kept_;
};

/// Micro-batches that lie in the engine's memory, too: x = 1, 2 and y = 6 x, two samples each.
class EngineData final : public StepData {
 public:
  TensorList inputs(const Unit& unit) override { return part(x_.data(), unit); }
  TensorList targets(const Unit& unit) override { return part(y_.data(), unit); }
  [[nodiscard]] std::int64_t first_sample(const Unit& unit) const override {
    return 2 * unit.micro_batch.value;
  }

 private:
  static TensorList part(float* first, const Unit& unit) {
    return TensorList(
        Tensor(DType::F32, {2}, first + 2 * unit.micro_batch.index(), nullptr, nullptr));
  }

  std::array<float, 4> x_{1, 2, 1, 2};
  std::array<float, 4> y_{6, 12, 6, 12};
};

}  // namespace

int main() {
  Engine engine;
  EngineData data;
  Multiply first(engine, 0), second(engine, 1);
  const std::vector<HostedStage> stages = {{Replica{0}, Stage{0}, &first},
                                           {Replica{0}, Stage{1}, &second}};
  const auto executor = make_executor(
      ExecutorKind::FlowGraph, generate("1f1b", {.ranks = 2, .micro_batches = 2}), stages);
  double loss = 0;
  for (std::uint64_t step = 0; step < 60; ++step) {
    const StepResult result = executor->run(data, {.step = step, .loss_scale = 1.0 / 4});
    if (step == 0)
      std::cout << "first gradients in the engine's buffer: " << engine.gradients[0] << ' '
                << engine.gradients[1] << '\n';
    loss = result.loss.sum / result.loss.weight;
    engine.sgd(0.02F);
  }
  std::cout << "w0 w1 = " << engine.weights[0] * engine.weights[1]
            << (loss < 1e-9 ? ", trained" : ", not trained") << '\n';
}
