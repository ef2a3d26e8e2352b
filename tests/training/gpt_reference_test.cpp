// Transformers against losses and gradients that PyTorch recorded (tests/reference/record_gpt.py),
// each of ten steps from the recorded state.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/stages/models.hpp"
#include "training/ten_line_reader.hpp"

namespace millrace {
namespace {

constexpr std::size_t kSteps = 10;
constexpr std::int64_t kSamplesInAll = 3;
constexpr std::int64_t kLength = 9;
constexpr double kTolerance = 1e-5;  // of a tensor's largest value

struct Case {
  const char* recording;
  const char* options;
};

class GptReference : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    std::ifstream stream(std::string(MILLRACE_SOURCE_DIR) + "/tests/reference/" +
                             GetParam().recording + ".safetensors",
                         std::ios::binary);
    recorded_ = testing_training::tensors_in({std::istreambuf_iterator<char>(stream), {}});
    model_ = parse_model(std::string("gpt:layers=2,d=8,heads=2,context=9,vocabulary=11") +
                         GetParam().options);
    whole_ = build_stage(model_, std::vector<int>{0, model_.layer_count()}, 0, 1);
    whole_->reserve(1, 1);
  }

  /// Row `step` of a recorded tensor into `tensor`.
  void read(const std::string& name, std::size_t step, Tensor& tensor) const {
    const std::string& bytes = recorded_.at(name);
    ASSERT_EQ(bytes.size(), kSteps * tensor.bytes()) << name;
    std::memcpy(tensor.data(), bytes.data() + step * tensor.bytes(), tensor.bytes());
  }

  [[nodiscard]] Tensor batch(const char* name, DType dtype, std::size_t step) const {
    Tensor tensor(dtype, {kSamplesInAll, kLength});
    read(name, step, tensor);
    return tensor;
  }

  [[nodiscard]] std::string name_recorded(const std::string& name) const {
    return !model_.tied.empty() && name == model_.tied[0][1] ? model_.tied[0][0] : name;
  }

  /// Loss of a step from the recorded state; gradients are in the parameters.
  double run(std::size_t step) {
    for (Parameter* parameter : whole_->parameters()) {
      read(name_recorded(parameter->name) + ".value", step, parameter->value);
      parameter->gradient.fill_zero();
    }
    TensorList targets(batch("targets", DType::I32, step));
    targets.push_back(batch("weights", DType::F32, step));
    LossSum loss;
    PassContext context;
    context.targets = &targets;
    context.loss = &loss;
    context.loss_scale = 1 / whole_->loss()->weight(targets);
    (void)whole_->forward(context, TensorList(batch("tokens", DType::I32, step)));
    (void)whole_->backward(context, {});
    return loss.sum / loss.weight;
  }

  std::map<std::string, std::string> recorded_;
  ModelSpec model_;
  std::unique_ptr<StageModule> whole_;
};

struct Difference {
  double largest = 0;     // recorded value
  double difference = 0;  // from it
};

TEST_P(GptReference, PyTorch_AgreesInTenSteps) {
  std::map<std::string, double> worst;
  for (std::size_t step = 0; step < kSteps; ++step) {
    double loss = 0;
    std::memcpy(&loss, recorded_.at("loss").data() + step * sizeof loss, sizeof loss);
    EXPECT_NEAR(run(step), loss, kTolerance * loss);
    std::map<std::string, std::vector<double>> sums;  // tied ones together
    for (const Parameter* parameter : whole_->parameters()) {
      auto& sum = sums[name_recorded(parameter->name)];
      const auto gradient = std::as_const(parameter->gradient).as<float>();
      sum.resize(gradient.size());
      for (std::size_t i = 0; i < gradient.size(); ++i) sum[i] += gradient[i];
    }
    for (const auto& [name, sum] : sums) {
      Tensor recorded(DType::F32, {static_cast<std::int64_t>(sum.size())});
      read(name + ".gradient", step, recorded);
      Difference found;
      for (std::size_t i = 0; i < sum.size(); ++i) {
        const double value = recorded.as<float>()[i];
        found.largest = std::max(found.largest, std::abs(value));
        found.difference = std::max(found.difference, std::abs(sum[i] - value));
      }
      EXPECT_LE(found.difference, kTolerance * found.largest) << name << " in step " << step;
      worst[name] = std::max(worst[name], found.difference / found.largest);
    }
  }
  for (const auto& [name, difference] : worst)
    std::cout << GetParam().recording << ' ' << name << ": largest difference " << difference
              << " of the largest value\n";
}

INSTANTIATE_TEST_SUITE_P(Models,
                         GptReference,
                         testing::Values(Case{"gpt_learned", ""},
                                         Case{"gpt_tied_rotary", ",tied=yes,pos=rotary"},
                                         Case{"gpt_rms_swiglu_kv", ",norm=rms,mlp=swiglu,kv=1"},
                                         Case{"gpt_tied_rms_rotary_swiglu",
                                              ",tied=yes,norm=rms,pos=rotary,mlp=swiglu"}),
                         [](const auto& of) { return std::string(of.param.recording); });

}  // namespace
}  // namespace millrace
