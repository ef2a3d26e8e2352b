// Stages that are no chain: skip edges to other ranks and inside one, outputs with several users,
// inputs from several stages, several stages with a loss. Every executor gives the bits of a loop
// that routes every tensor by itself, and its gradients are those of central differences.
#include <cmath>
#include <map>

#include <gmock/gmock.h>

#include "millrace/scheduler/plan/verify.hpp"
#include "run/executor_conformance.hpp"

namespace millrace::testing_run {

namespace {

constexpr std::int64_t kColumns = 3;
constexpr int kMicroBatches = 4;

/// y_o = sum over k of w[o, k] x_k / (1 + |x_k|); the last stage's loss is the sum of (y_0 - t)^2.
class BranchStage final : public StageBody {
 public:
  BranchStage(int stage, std::size_t inputs, std::size_t outputs, bool last)
      : inputs_(inputs), outputs_(outputs), first_(stage == 0), last_(last) {
    parameter_.name = "layers." + std::to_string(stage) + ".weight";
    parameter_.value = Tensor(DType::F32, {static_cast<std::int64_t>(inputs * outputs)});
    parameter_.gradient = Tensor(DType::F32, {static_cast<std::int64_t>(inputs * outputs)});
    parameter_.gradient.fill_zero();
    for (std::size_t i = 0; i < inputs * outputs; ++i)
      parameter_.value.as<float>()[i] = static_cast<float>(
          0.5 + random_uniform({.seed = 8, .layer = static_cast<std::uint32_t>(stage)},
                               static_cast<std::uint32_t>(i)));
  }

  TensorList forward(const PassContext& context, TensorList inputs) override {
    EXPECT_EQ(inputs.size(), inputs_);
    std::vector<Tensor> outputs;
    for (std::size_t o = 0; o < outputs_; ++o)
      outputs.push_back(context.make(DType::F32, inputs[0].dims()));
    for (std::size_t o = 0; o < outputs_; ++o)
      for (std::size_t i = 0; i < outputs[o].as<float>().size(); ++i) {
        float sum = 0;
        for (std::size_t k = 0; k < inputs_; ++k)
          sum += weight(o, k) * squashed(inputs[k].as<float>()[i]);
        outputs[o].as<float>()[i] = sum;
      }
    Kept& kept = kept_[context.unit()];
    if (last_) kept.output_gradients.push_back(loss(context, outputs[0]));
    kept.inputs = std::move(inputs);
    TensorList given;
    for (Tensor& output : outputs)
      if (!last_) given.push_back(std::move(output));
    return given;
  }

  TensorList backward_input(const PassContext& context, TensorList gradients) override {
    Kept& kept = kept_[context.unit()];
    if (!last_) kept.output_gradients = std::move(gradients);
    EXPECT_EQ(kept.output_gradients.size(), outputs_);
    TensorList input_gradients;
    for (std::size_t k = 0; k < inputs_ && !first_; ++k) {
      Tensor gradient = context.make(DType::F32, kept.inputs[k].dims());
      for (std::size_t i = 0; i < gradient.as<float>().size(); ++i) {
        const float a = 1 + std::abs(kept.inputs[k].as<float>()[i]);
        float sum = 0;
        for (std::size_t o = 0; o < outputs_; ++o)
          if (kept.output_gradients[o])
            sum += weight(o, k) * kept.output_gradients[o].as<float>()[i];
        gradient.as<float>()[i] = sum / (a * a);
      }
      input_gradients.push_back(std::move(gradient));
    }
    return input_gradients;
  }

  void backward_weight(const PassContext& context) override {
    const Kept kept = std::move(kept_[context.unit()]);
    kept_.erase(context.unit());
    for (std::size_t o = 0; o < outputs_; ++o)
      for (std::size_t k = 0; k < inputs_; ++k) {
        if (!kept.output_gradients[o]) continue;
        const auto x = kept.inputs[k].as<float>();
        for (std::size_t i = 0; i < x.size(); ++i)
          parameter_.gradient.as<float>()[o * inputs_ + k] +=
              kept.output_gradients[o].as<float>()[i] * squashed(x[i]);
      }
  }

  [[nodiscard]] std::vector<Parameter*> parameters() override { return {&parameter_}; }
  [[nodiscard]] std::size_t stashed_units() const override { return kept_.size(); }
  void abandon_step() noexcept override { kept_.clear(); }

 private:
  struct Kept {
    TensorList inputs, output_gradients;
  };

  static float squashed(float x) { return x / (1 + std::abs(x)); }
  [[nodiscard]] float weight(std::size_t o, std::size_t k) const {
    return parameter_.value.as<float>()[o * inputs_ + k];
  }

  static Tensor loss(const PassContext& context, const Tensor& y) {
    Tensor gradient = context.make(DType::F32, y.dims());
    const auto t = (*context.targets)[0].as<float>();
    for (std::size_t i = 0; i < t.size(); ++i) {
      const float difference = y.as<float>()[i] - t[i];
      context.loss->sum += double{difference} * double{difference};
      gradient.as<float>()[i] = static_cast<float>(2 * context.loss_scale) * difference;
    }
    context.loss->weight += 1;
    return gradient;
  }

  std::size_t inputs_, outputs_;
  bool first_, last_;
  Parameter parameter_;
  std::map<Unit, Kept> kept_;
};

class BranchData final : public StepData {
 public:
  TensorList inputs(const Unit& unit) override { return TensorList(make(unit, 0)); }
  TensorList targets(const Unit& unit) override { return TensorList(make(unit, 1)); }
  [[nodiscard]] std::int64_t first_sample(const Unit& unit) const override {
    return 2 * unit.micro_batch.value;
  }

 private:
  static Tensor make(const Unit& unit, std::uint32_t kind) {
    Tensor tensor(DType::F32, {2, kColumns});
    for (std::size_t i = 0; i < tensor.as<float>().size(); ++i)
      tensor.as<float>()[i] = static_cast<float>(
          random_uniform({.seed = 9,
                          .sample = static_cast<std::uint32_t>(unit.micro_batch.value),
                          .layer = kind},
                         static_cast<std::uint32_t>(i)) -
          0.3);
    return tensor;
  }
};

/// What the stages between and a graph's end have in common.
struct Branches {
  std::vector<StageEdge> edges;
  std::vector<Stage> sinks = {};  // none: the last stage
};

/// A model over a graph of stages, hosted for executors, and the loop that needs none.
class BranchModel {
 public:
  BranchModel(int stages, const Branches& branches)
      : stages_(stages), edges_(branches.edges), sinks_(branches.sinks) {
    if (sinks_.empty()) sinks_.emplace_back(stages - 1);
    for (int s = 0; s < stages; ++s) {
      const bool last = scale(s) != 0;
      bodies_.push_back(std::make_unique<BranchStage>(
          s, s == 0 ? 1 : count(s, false), last ? 1 : count(s, true), last));
      hosted.push_back({Replica{0}, Stage{s}, bodies_.back().get()});
    }
  }

  std::vector<HostedStage> hosted;

  /// Twice as much for each sink as for the one before.
  [[nodiscard]] double scale(int stage) const {
    const auto sink = std::ranges::find(sinks_, Stage{stage});
    return sink == sinks_.end()
               ? 0
               : std::ldexp(1.0 / kMicroBatches, static_cast<int>(sink - sinks_.begin()));
  }

  [[nodiscard]] StepSettings settings() const {
    StepSettings settings;
    settings.loss_scale = 1.0 / kMicroBatches;
    for (const Stage sink : sinks_) settings.loss_scales.push_back(scale(sink.value));
    settings.deadline = std::chrono::seconds(20);
    return settings;
  }

  std::vector<std::vector<float>> step(Executor& executor) {
    zero();
    BranchData data;
    const StepResult result = executor.run(data, settings());
    losses.clear();
    for (const std::vector<LossSum>& units : result.other_losses) losses.push_back(sum_of(units));
    losses.push_back(sum_of(result.unit_losses));
    return gradients();
  }

  /// Micro-batch after micro-batch; where an output has several users their gradients are added in
  /// the order of their stages, and of their inputs within one.
  std::vector<std::vector<float>> plain_loop() {
    zero();
    losses.assign(sinks_.size(), 0);
    for (int i = 0; i < kMicroBatches; ++i) run_unit(i);
    return gradients();
  }

  Parameter& parameter(int stage) {
    return *bodies_[static_cast<std::size_t>(stage)]->parameters()[0];
  }

  /// What is minimized.
  [[nodiscard]] double loss() const {
    double sum = 0;
    for (std::size_t sink = 0; sink < losses.size(); ++sink)
      sum += losses[sink] * scale(sinks_[sink].value);
    return sum;
  }

  std::vector<double> losses;  // by sink

 private:
  static double sum_of(const std::vector<LossSum>& units) {
    double sum = 0;
    for (const LossSum& unit : units) sum += unit.sum;
    return sum;
  }

  std::size_t count(int stage, bool outputs) const {
    int most = 0;
    for (const StageEdge& edge : edges_)
      if ((outputs ? edge.from : edge.to).value == stage)
        most = std::max(most, 1 + (outputs ? edge.output : edge.input));
    return static_cast<std::size_t>(most);
  }

  static Tensor copy(const Tensor& from) {
    Tensor to(from.dtype(), from.dims());
    std::ranges::copy(from.as<float>(), to.as<float>().begin());
    return to;
  }

  /// Where the input of a stage comes from: every one has one edge.
  const StageEdge& into(int stage, std::size_t input) const {
    for (const StageEdge& edge : edges_)
      if (edge.to.value == stage && edge.input == static_cast<int>(input)) return edge;
    throw Error("no edge");
  }

  void run_unit(int number) {
    BranchData data;
    const Unit unit{MicroBatch{number}, {}};
    PassContext context;
    context.micro_batch = unit.micro_batch;
    std::vector<LossSum> sums(static_cast<std::size_t>(stages_));
    const TensorList targets = data.targets(unit);
    context.targets = &targets;
    std::vector<TensorList> outputs;
    for (int s = 0; s < stages_; ++s) {
      TensorList inputs = s == 0 ? data.inputs(unit) : TensorList();
      for (std::size_t k = 0; s > 0 && k < count(s, false); ++k) {
        const StageEdge& edge = into(s, k);
        inputs.push_back(copy(outputs[edge.from.index()][static_cast<std::size_t>(edge.output)]));
      }
      context.loss = &sums[static_cast<std::size_t>(s)];
      context.loss_scale = scale(s);
      outputs.push_back(
          hosted[static_cast<std::size_t>(s)].body->forward(context, std::move(inputs)));
    }
    for (std::size_t sink = 0; sink < sinks_.size(); ++sink)
      losses[sink] += sums[sinks_[sink].index()].sum;
    std::vector<TensorList> input_gradients(static_cast<std::size_t>(stages_));
    for (int s = stages_ - 1; s >= 0; --s) {
      TensorList wanted;
      for (std::size_t o = 0; o < count(s, true); ++o)
        wanted.push_back(gradient_of(s, static_cast<int>(o), input_gradients));
      StageBody& body = *hosted[static_cast<std::size_t>(s)].body;
      input_gradients[static_cast<std::size_t>(s)] =
          body.backward_input(context, std::move(wanted));
      body.backward_weight(context);
    }
  }

  Tensor gradient_of(int stage, int output, const std::vector<TensorList>& gradients) const {
    Tensor sum;
    for (int to = stage + 1; to < stages_; ++to)
      for (std::size_t input = 0; input < count(to, false); ++input) {
        const StageEdge& edge = into(to, input);
        if (edge.from.value != stage || edge.output != output) continue;
        const Tensor& term = gradients[static_cast<std::size_t>(to)][input];
        if (!sum) {
          sum = copy(term);
          continue;
        }
        for (std::size_t i = 0; i < term.as<float>().size(); ++i)
          sum.as<float>()[i] += term.as<float>()[i];
      }
    return sum;
  }

  void zero() {
    for (const auto& body : bodies_) body->parameters()[0]->gradient.fill_zero();
  }

  [[nodiscard]] std::vector<std::vector<float>> gradients() const {
    std::vector<std::vector<float>> all;
    for (const auto& body : bodies_) {
      const auto values = body->parameters()[0]->gradient.as<float>();
      all.emplace_back(values.begin(), values.end());
    }
    return all;
  }

  int stages_;
  std::vector<StageEdge> edges_;
  std::vector<Stage> sinks_;
  std::vector<std::unique_ptr<BranchStage>> bodies_;
};

StageEdge edge(int from, int output, int to, int input) {
  return {Stage{from}, output, Stage{to}, input};
}

/// To a neighbour's neighbour, inside a rank (two chunks on two ranks: 0 and 2), one output with
/// three users, an unused output, two edges between the same stages.
Branches branches() {
  return {{edge(0, 0, 1, 0),
           edge(0, 2, 1, 1),
           edge(0, 0, 2, 1),
           edge(0, 0, 3, 0),
           edge(1, 0, 2, 0),
           edge(1, 0, 3, 1),
           edge(2, 0, 3, 2),
           edge(2, 1, 3, 3)}};
}

/// A loss after the first stage, one after the third, and the main one.
Branches heads() {
  return {{edge(0, 0, 1, 0), edge(0, 0, 2, 0), edge(0, 1, 2, 1), edge(0, 1, 3, 0)},
          {Stage{1}, Stage{2}, Stage{3}}};
}

Program with_branches(const Branches& branches,
                      const std::string& schedule,
                      int ranks,
                      int chunks) {
  ScheduleOptions options;
  options.ranks = ranks;
  options.micro_batches = kMicroBatches;
  if (chunks > 1) options.chunks = chunks;
  Program program = generate(schedule, options);
  program.shape.edges = branches.edges;
  program.shape.sinks = branches.sinks;
  return program;
}

std::vector<Program> programs(const Branches& branches) {
  std::vector<Program> all;
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1", "zb-h2"})
    all.push_back(with_branches(branches, schedule, 4, 1));
  all.push_back(with_branches(branches, "interleaved", 2, 2));
  all.push_back(with_branches(branches, "zb-v", 2, 1));
  return all;
}

/// Named after its executor, for those that leave some out.
class SkipEdgesOn : public ::testing::TestWithParam<ExecutorUnderTest> {};

INSTANTIATE_TEST_SUITE_P(All,
                         SkipEdgesOn,
                         ::testing::ValuesIn(executors_under_test()),
                         name_of_executor);

TEST_P(SkipEdgesOn, EveryExecutor_HasBitsOfTheLoop) {
  for (const Branches& graph : {branches(), heads()})
    for (const Program& program : programs(graph)) {
      SCOPED_TRACE(program.name);
      ASSERT_TRUE(verify(program).empty());
      BranchModel reference(4, graph);
      const auto expected = reference.plain_loop();
      BranchModel model(4, graph);
      const auto runs = GetParam().make(program, model.hosted);
      EXPECT_EQ(model.step(*runs), expected);
      EXPECT_EQ(model.step(*runs), expected);
      EXPECT_EQ(model.losses, reference.losses);
    }
}

TEST(SkipEdges, GradientsAreThoseOfCentralDifferences) {
  for (const Branches& graph : {branches(), heads()}) {
    BranchModel model(4, graph);
    const auto program = with_branches(graph, "1f1b", 4, 1);
    const auto executor = make_executor(ExecutorKind::Ranks, program, model.hosted);
    const auto gradients = model.step(*executor);
    for (int stage = 0; stage < 4; ++stage)
      for (std::size_t i = 0; i < gradients[static_cast<std::size_t>(stage)].size(); ++i) {
        float& weight = model.parameter(stage).value.as<float>()[i];
        const float before = weight;
        const auto loss_at = [&](float value) {
          weight = value;
          model.plain_loop();
          return model.loss();
        };
        constexpr float kStep = 1e-2F;
        const double slope = (loss_at(before + kStep) - loss_at(before - kStep)) / (2 * kStep);
        weight = before;
        EXPECT_NEAR(
            gradients[static_cast<std::size_t>(stage)][i], slope, 2e-3 * (1 + std::abs(slope)))
            << "stage " << stage << ", weight " << i;
      }
  }
}

TEST(SkipEdges, AStageThatGivesTooManyTensorsIsNamed) {
  BranchModel model(4, branches());
  Program program = with_branches(branches(), "1f1b", 4, 1);
  program.shape.edges.pop_back();  // the only user of output 1 of stage 2
  const auto executor = make_executor(ExecutorKind::Sequential, program, model.hosted);
  BranchData data;
  try {
    static_cast<void>(executor->run(data, model.settings()));
    FAIL() << "it ran";
  } catch (const StepError& error) {
    EXPECT_THAT(
        error.what(),
        ::testing::HasSubstr("forward of stage 2, micro-batch 0 failed on rank 2: it gave 2 "
                             "tensors, wanted 1: its edges use outputs 0 to 0"));
  }
}

TEST(SkipEdges, AStageThatGivesTooFewTensorsIsNamed) {
  BranchModel model(4, branches());
  std::vector<StageEdge> more = branches().edges;
  more.push_back(edge(1, 3, 2, 2));
  Program program = with_branches(branches(), "1f1b", 4, 1);
  program.shape.edges = more;
  const auto executor = make_executor(ExecutorKind::Sequential, program, model.hosted);
  BranchData data;
  try {
    static_cast<void>(executor->run(data, model.settings()));
    FAIL() << "it ran";
  } catch (const StepError& error) {
    EXPECT_THAT(error.what(),
                ::testing::HasSubstr(
                    "forward of stage 1, micro-batch 0 failed on rank 1: it gave 1 tensor, "
                    "wanted 4: its edges use outputs 0 to 3"));
  }
}

}  // namespace

}  // namespace millrace::testing_run
