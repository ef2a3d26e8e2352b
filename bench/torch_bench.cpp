// What a pipeline of PyTorch's modules costs beyond PyTorch: a split backward against a whole one,
// an action against the pass that it runs, and what two ranks make of it, next to one thread and
// next to the simulator's ideal. Times of one thread are processor times, so that neighbours on the
// machine do not count; each pair is taken in turns.
#include <chrono>
#include <ctime>
#include <memory>
#include <stdexcept>
#include <torch/torch.h>

#include <benchmark/benchmark.h>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/graph.hpp"
#include "millrace/scheduler/plan/simulate.hpp"
#include "millrace/torch/forward.hpp"
#include "millrace/torch/memory.hpp"
#include "millrace/torch/pipeline.hpp"
#include "millrace/training/records.hpp"
#include "millrace/training/trainer.hpp"
#include "torch/small_gpt.hpp"
#include "torch/torch_units.hpp"
#include "torch/usual_gpt.hpp"

namespace {

using namespace millrace;
using testing_torch::TorchUnits;

constexpr int kModel = 128;

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Attention of one head and a perceptron, after norms.
struct WideBlockImpl : torch::nn::Module {
  WideBlockImpl()
      : before(register_module("before", norm())),
        mix(register_module("mix", torch::nn::Linear(kModel, 3 * kModel))),
        out(register_module("out", torch::nn::Linear(kModel, kModel))),
        between(register_module("between", norm())),
        wide(register_module("wide", torch::nn::Linear(kModel, 4 * kModel))),
        narrow(register_module("narrow", torch::nn::Linear(4 * kModel, kModel))) {}

  static torch::nn::LayerNorm norm() {
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({kModel}));
  }

  torch::Tensor forward(torch::Tensor x) {
    const std::vector<torch::Tensor> parts = mix(before(x)).chunk(3, -1);
    const auto scores = torch::matmul(parts[0], parts[1].transpose(-2, -1)) * 0.1;
    x = x + out(torch::matmul(scores.softmax(-1), parts[2]));
    return x + narrow(torch::gelu(wide(between(x))));
  }

  torch::nn::LayerNorm before;
  torch::nn::Linear mix, out;
  torch::nn::LayerNorm between;
  torch::nn::Linear wide, narrow;
};
TORCH_MODULE(WideBlock);

Tensor borrowed(torch::Tensor& tensor) {
  return {DType::F32,
          Dims(std::span<const std::int64_t>(tensor.sizes().data(), tensor.sizes().size())),
          tensor.data_ptr(),
          nullptr,
          nullptr};
}

void require_same(const torch::Tensor& one, const torch::Tensor& other) {
  if (!torch::equal(one, other)) throw std::logic_error("the two ways have other bits");
}

/// (I + W) / B over four blocks in the middle of a pipeline.
void split_against_whole(benchmark::State& state) {
  torch::manual_seed(1);
  torch::nn::Sequential model;
  for (int i = 0; i < 4; ++i) model->push_back(WideBlock());
  TorchStage stage(model.ptr(), [model](const std::vector<torch::Tensor>& x) mutable {
    return std::vector<torch::Tensor>{model->forward(x[0])};
  });
  torch::Tensor x = torch::randn({state.range(0), 64, kModel});
  torch::Tensor dy = torch::randn(x.sizes());
  torch::Tensor gradient = model->parameters()[0].grad();
  const PassContext context;
  double whole = 0, split = 0;
  for (auto _ : state) {
    gradient.zero_();
    (void)stage.forward(context, TensorList(borrowed(x)));
    double start = processor_seconds();
    (void)stage.backward(context, TensorList(borrowed(dy)));
    whole += processor_seconds() - start;
    const torch::Tensor expected = gradient.clone();
    gradient.zero_();
    (void)stage.forward(context, TensorList(borrowed(x)));
    start = processor_seconds();
    (void)stage.backward_input(context, TensorList(borrowed(dy)));
    stage.backward_weight(context);
    split += processor_seconds() - start;
    require_same(gradient, expected);
  }
  state.counters["(I+W)/B"] = split / whole;
}

/// F and B of a stage of one tiny layer against the same passes by hand.
void action_beyond_pytorch(benchmark::State& state) {
  at::set_num_threads(1);
  torch::nn::Linear layer(4, 4);
  const auto stage = make_torch_stage(layer);
  torch::Tensor x = torch::randn({2, 4}), dy = torch::randn({2, 4});
  const std::vector<torch::Tensor> parameters = layer->parameters();
  const PassContext context;
  double ours = 0, theirs = 0;
  std::int64_t rounds = 0;
  for (auto _ : state) {
    double start = processor_seconds();
    for (int i = 0; i < 100; ++i) {
      (void)stage->forward(context, TensorList(borrowed(x)));
      (void)stage->backward(context, TensorList(borrowed(dy)));
    }
    ours += processor_seconds() - start;
    start = processor_seconds();
    for (int i = 0; i < 100; ++i) {
      const torch::Tensor leaf = x.detach().requires_grad_();
      const auto gradients =
          torch::autograd::grad({layer(leaf)}, {leaf, parameters[0], parameters[1]}, {dy});
      parameters[0].grad().add_(gradients[1]);
      parameters[1].grad().add_(gradients[2]);
    }
    theirs += processor_seconds() - start;
    rounds += 100;
  }
  state.counters["us/action beyond"] = 1e6 * (ours - theirs) / static_cast<double>(2 * rounds);
  state.counters["us/action of PyTorch"] = 1e6 * theirs / static_cast<double>(2 * rounds);
}

TorchLossSum squares(const std::vector<torch::Tensor>& outputs,
                     const std::vector<torch::Tensor>& targets) {
  return {(outputs[0] - targets[0]).square().sum(), static_cast<double>(targets[0].size(0))};
}

/// How far steps are from what the simulator makes of the passes that were measured in them.
class Ideal {
 public:
  explicit Ideal(const Trainer& trainer)
      : trainer_(trainer), profile_(trainer.executor().program()) {}

  void add_step() { profile_.add(trainer_.executor().timeline()); }

  /// Simulated by measured makespan.
  [[nodiscard]] double share() const {
    const Program& program = trainer_.executor().program();
    const Graph graph(program);
    const auto run = simulate(graph, profile_.cost(trainer_.stages(), {.samples = 4}));
    return step_use(program, std::get<Timeline>(run)).makespan / profile_.use().makespan;
  }

 private:
  const Trainer& trainer_;
  Profile profile_;
};

/// m = 32 micro-batches through two ranks, against a plain loop in one thread. Wall time.
void two_ranks(benchmark::State& state) {
  constexpr int kMicroBatches = 32;
  torch::manual_seed(1);
  torch::nn::Sequential model, plain;
  for (int i = 0; i < 4; ++i) model->push_back(WideBlock());
  torch::manual_seed(1);
  for (int i = 0; i < 4; ++i) plain->push_back(WideBlock());
  std::vector<TorchUnits::Tensors> inputs, targets;
  for (int i = 0; i < kMicroBatches; ++i) {
    inputs.push_back({torch::randn({4, 64, kModel})});
    targets.push_back({torch::randn({4, 64, kModel})});
  }
  const char* schedule = state.range(0) == 0 ? "1f1b" : "zb-h1";
  state.SetLabel(schedule);
  Trainer trainer({generate(schedule, {.ranks = 2, .micro_batches = kMicroBatches})},
                  torch_pipeline(model, squares, 2));
  testing_torch::PlainUpdates updates(*plain);
  Ideal ideal(trainer);
  double ours = 0, theirs = 0;
  for (auto _ : state) {
    TorchUnits data(inputs, targets);
    double start = seconds();
    trainer.step(data, 4.0 * kMicroBatches);
    ours += seconds() - start;
    ideal.add_step();
    at::set_num_threads(1);
    start = seconds();
    updates.zero();
    for (std::size_t i = 0; i < kMicroBatches; ++i)
      squares({plain->forward(inputs[i][0])}, targets[i])
          .sum.backward(torch::full({}, 1 / (4.0 * kMicroBatches)));
    updates.update(1);
    theirs += seconds() - start;
  }
  state.counters["times plain"] = theirs / ours;
  state.counters["of the ideal"] = ideal.share();
}

/// A step of the GPT that bench/against_pytorch/torch_pipe.py gives to PyTorch's Pipe, with its cut
/// in two and its 32 micro-batches.
void gpt_step(benchmark::State& state) {
  constexpr int kMicroBatches = 32;
  constexpr int kSequences = 4 * kMicroBatches;
  const Dataset text = load_data("text", 1, 64).train;
  torch::manual_seed(1);
  const torch::nn::Sequential model = testing_torch::usual_gpt(
      {.words = text.classes, .columns = kModel, .heads = 4, .length = 64, .blocks = 4});
  const char* schedule = state.range(0) == 0 ? "1f1b" : "zb-h1";
  state.SetLabel(schedule);
  TrainerOptions options{.step = {.clip_norm = 1}, .fit = {.batch_size = kSequences}};
  options.step.optimizer = optimizer_defaults(OptimizerKind::AdamW);
  Trainer trainer(
      {generate(schedule, {.ranks = 2, .micro_batches = kMicroBatches})},
      torch_pipeline(model, testing_torch::loss_of_words, 2, {.cut = std::vector<int>{0, 3, 7}}),
      options);
  Loader loader(text, trainer.loader_options());
  Ideal ideal(trainer);
  const auto step = [&] {
    Batch& batch = loader.next();
    trainer.step(batch, static_cast<double>(batch.positions()));
  };
  step();  // pays for memory
  for (auto _ : state) {
    step();
    ideal.add_step();
  }
  state.counters["of the ideal"] = ideal.share();
}

/// The same where malloc keeps what is freed, for good: these come last.
void split_with_memory_kept(benchmark::State& state) {
  if (!keep_freed_memory()) throw std::logic_error("this malloc keeps no memory");
  split_against_whole(state);
}

void two_ranks_with_memory_kept(benchmark::State& state) {
  if (!keep_freed_memory()) throw std::logic_error("this malloc keeps no memory");
  two_ranks(state);
}

BENCHMARK(split_against_whole)->Arg(1)->Arg(4)->Arg(16)->Unit(benchmark::kMillisecond);
BENCHMARK(action_beyond_pytorch)->Unit(benchmark::kMicrosecond);
BENCHMARK(two_ranks)->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK(gpt_step)->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK(split_with_memory_kept)->Arg(1)->Arg(4)->Arg(16)->Unit(benchmark::kMillisecond);
BENCHMARK(two_ranks_with_memory_kept)->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
