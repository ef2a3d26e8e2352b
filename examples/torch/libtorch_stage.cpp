// Modules of LibTorch as stages: public autograd calls make the passes, torch::optim updates.
// Exits with 1 unless both schedules train to the bits of a plain loop.
#include <map>
#include <millrace/millrace.hpp>
#include <torch/torch.h>

using namespace millrace;
namespace nn = torch::nn;

struct Kept {  // of a unit, between its passes
  at::Tensor input, output, gradient;
};

at::Tensor taken(Tensor tensor) {  // shares the memory
  const auto held = std::make_shared<Tensor>(std::move(tensor));
  return torch::from_blob(held->data(), {held->rows(), held->columns()}, [held](void*) {});
}

Tensor given(const at::Tensor& tensor) {  // shares the memory
  auto* held = new at::Tensor(tensor.detach().contiguous());
  const auto end = [](void*, auto, void* it) noexcept { delete static_cast<at::Tensor*>(it); };
  return {DType::F32, {held->size(0), held->size(1)}, held->data_ptr(), end, held};
}

/// `splits`: the backward pass has two halves, of which the first retains the graph.
std::unique_ptr<StageBody> stage(nn::Sequential module, bool last, bool splits) {
  const auto units = std::make_shared<std::map<Unit, Kept>>();
  StageFunctions passes;
  passes.forward = [=](const PassContext& context, TensorList inputs, TensorList&) mutable {
    Kept& unit = (*units)[context.unit()] = {taken(std::move(inputs[0])), {}, {}};
    unit.output = module->forward(unit.input.requires_grad_(last));
    if (!last) return TensorList(given(unit.output));
    const at::Tensor loss = (unit.output - taken((*context.targets)[0].clone())).square().sum();
    *context.loss += LossSum{loss.item<double>(), static_cast<double>(unit.input.size(0))};
    unit.output = loss * context.loss_scale;
    return TensorList();
  };
  passes.backward_input = [=](const PassContext& context, TensorList gradients, TensorList&) {
    Kept& unit = units->at(context.unit());
    if (!last) unit.gradient = taken(std::move(gradients[0]));
    if (!splits) torch::autograd::backward({unit.output}, {unit.gradient});
    if (!last) return TensorList();  // the data need no gradient
    if (!splits) return TensorList(given(unit.input.grad()));
    return TensorList(given(torch::autograd::grad({unit.output}, {unit.input}, {}, true)[0]));
  };
  const auto backward_weight = [=](const PassContext& context, TensorList&) {
    const Kept unit = units->extract(context.unit()).mapped();
    const std::vector<at::Tensor> weights = module->parameters();
    const auto gradients = torch::autograd::grad({unit.output}, weights, {unit.gradient});
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i].mutable_grad() += gradients[i];
  };
  if (splits) passes.backward_weight = backward_weight;
  return make_stage(std::move(passes));
}

int main() {
  for (const std::string schedule : {"plain", "1f1b", "zb-h1"}) {
    torch::manual_seed(1);
    nn::Sequential front(nn::Linear(8, 32), nn::Tanh()), back(nn::Linear(32, 32), nn::GELU());
    std::vector<at::Tensor> weights = front->parameters();
    for (const at::Tensor& weight : back->parameters()) weights.push_back(weight);
    for (const at::Tensor& weight : weights) weight.mutable_grad() = torch::zeros_like(weight);
    const at::Tensor x = torch::randn({64, 8}), y = torch::randn({64, 32});
    const std::vector<at::Tensor> xs = x.split(16), ys = y.split(16);
    Batch batch(make_dataset("noise", given(x), given(y)), 4);
    const bool splits = schedule == "zb-h1", plain = schedule == "plain";
    const auto begin = stage(front, false, splits), end = stage(back, true, splits);
    const std::vector<HostedStage> stages{{{}, Stage{0}, begin.get()}, {{}, Stage{1}, end.get()}};
    const Program program = generate(plain ? "1f1b" : schedule, {.ranks = 2, .micro_batches = 4});
    const auto executor = make_executor(ExecutorKind::FlowGraph, program, stages);
    torch::optim::AdamW optimizer(weights);
    for (std::uint64_t step = 0; step < 10; ++step, optimizer.step(), optimizer.zero_grad(false)) {
      if (!plain) executor->run(batch, {.step = step, .loss_scale = 1.0 / 64});
      for (std::size_t i = 0; plain && i < 4; ++i)
        ((back->forward(front->forward(xs[i])) - ys[i]).square().sum() / 64).backward();
    }
    static const std::vector<at::Tensor> expected = weights;  // of the plain loop
    if (!std::ranges::equal(weights, expected, torch::equal)) return 1;
  }
}
