// check_gradients against stages that are right, and against stages with one planted fault each.
#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/stages/models.hpp"
#include "millrace/training/checks.hpp"

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

enum class Fault {
  None,
  WeightGradient,  ///< a tenth too large
  OneInput,        ///< of element 2, with the wrong sign
  Assigns,         ///< the second unit replaces the first
  OtherBackward,   ///< backward is not its two halves
  Keeps,           ///< forgets to throw its stash away
};

/// y = w x^2, element by element: dy/dx = 2 w x, dy/dw = x^2.
class Square final : public StageBody {
 public:
  Square(DType dtype, Fault fault) : fault_(fault) {
    weight_.name = "w";
    weight_.value = Tensor(dtype, {4});
    weight_.gradient = Tensor(dtype, {4});
    fill(weight_.value, {1, -2, 3, 0.5});
  }

  static void fill(Tensor& tensor, const std::vector<double>& values) {
    for (std::size_t i = 0; i < values.size(); ++i) set(tensor, i, values[i]);
  }

  TensorList forward(const PassContext& context, TensorList inputs) override {
    Tensor output = context.make(inputs[0].dtype(), inputs[0].dims());
    for (std::size_t i = 0; i < 4; ++i) set(output, i, at(weight_.value, i) * square(inputs[0], i));
    kept_ = std::move(inputs);
    units_ = 1;
    return TensorList(std::move(output));
  }

  TensorList backward_input(const PassContext& context, TensorList gradients) override {
    Tensor gradient = context.make(kept_[0].dtype(), kept_[0].dims());
    for (std::size_t i = 0; i < 4; ++i) {
      const double sign = fault_ == Fault::OneInput && i == 2 ? -1 : 1;
      set(gradient, i, sign * 2 * at(weight_.value, i) * at(kept_[0], i) * at(gradients[0], i));
    }
    given_ = std::move(gradients);
    return TensorList(std::move(gradient));
  }

  void backward_weight(const PassContext&) override {
    const double factor = fault_ == Fault::WeightGradient ? 1.1 : 1;
    for (std::size_t i = 0; i < 4; ++i) {
      const double before = fault_ == Fault::Assigns ? 0 : at(weight_.gradient, i);
      set(weight_.gradient, i, before + factor * square(kept_[0], i) * at(given_[0], i));
    }
    units_ = fault_ == Fault::Keeps ? 1 : 0;
  }

  TensorList backward(const PassContext& context, TensorList gradients) override {
    TensorList inputs = StageBody::backward(context, std::move(gradients));
    if (fault_ == Fault::OtherBackward) set(weight_.gradient, 1, 0.25 + at(weight_.gradient, 1));
    return inputs;
  }

  std::vector<Parameter*> parameters() override { return {&weight_}; }
  [[nodiscard]] std::size_t stashed_units() const override { return units_; }

 private:
  static double at(const Tensor& tensor, std::size_t i) {
    return tensor.dtype() == DType::F64 ? tensor.as<double>()[i]
                                        : static_cast<double>(tensor.as<float>()[i]);
  }

  static void set(Tensor& tensor, std::size_t i, double value) {
    if (tensor.dtype() == DType::F64) {
      tensor.as<double>()[i] = value;
    } else {
      tensor.as<float>()[i] = static_cast<float>(value);
    }
  }

  static double square(const Tensor& tensor, std::size_t i) {
    return at(tensor, i) * at(tensor, i);
  }

  Fault fault_;
  Parameter weight_;
  TensorList kept_, given_;
  std::size_t units_ = 0;
};

TensorList input_of(DType dtype) {
  Tensor input(dtype, {1, 4});
  Square::fill(input, {0.5, -1, 1.5, 2});
  return TensorList(std::move(input));
}

GradientCheck checked(Fault fault, DType dtype) {
  Square stage(dtype, fault);
  return check_gradients(stage, input_of(dtype));
}

std::vector<std::string> wrong(const GradientCheck& check) {
  std::vector<std::string> names;
  for (const TensorCheck& tensor : check.tensors)
    if (!tensor.holds) names.push_back(tensor.name);
  return names;
}

TEST(CheckGradients, HoldsForAStageThatIsRight) {
  for (const DType dtype : {DType::F32, DType::F64}) {
    const GradientCheck check = checked(Fault::None, dtype);
    EXPECT_TRUE(check.holds()) << to_string(check);
    ASSERT_EQ(check.tensors.size(), 2U);
    EXPECT_EQ(check.tensors[0].name, "w");
    EXPECT_EQ(check.tensors[1].name, "input 0");
    EXPECT_EQ(check.tensors[0].elements, 4);
  }
  EXPECT_LT(checked(Fault::None, DType::F64).worst()->error, 1e-8);
}

TEST(CheckGradients, NamesTheParameterWhoseGradientIsWrong) {
  for (const DType dtype : {DType::F32, DType::F64}) {
    const GradientCheck check = checked(Fault::WeightGradient, dtype);
    EXPECT_THAT(wrong(check), ElementsAre("w"));
    EXPECT_NEAR(check.worst()->error, 0.1 / 1.1, 1e-2);
    EXPECT_NEAR(check.worst()->backward, 1.1 * check.worst()->difference, 1e-2);
    EXPECT_THAT(to_string(check), HasSubstr("WRONG  w: relative difference"));
  }
}

TEST(CheckGradients, NamesTheInputAndTheElement) {
  const GradientCheck check = checked(Fault::OneInput, DType::F32);
  EXPECT_THAT(wrong(check), ElementsAre("input 0"));
  EXPECT_EQ(check.worst()->index, 2);
}

TEST(CheckGradients, FindsWhatIsWrongBesideTheNumbers) {
  for (const auto& [fault, sentence] :
       {std::pair(Fault::Assigns, "does not add to the gradient of 'w'"),
        {Fault::OtherBackward, "backward gives 'w' other bits"},
        {Fault::Keeps, "1 unit(s) are still stashed"}}) {
    const GradientCheck check = checked(fault, DType::F32);
    EXPECT_FALSE(check.holds());
    EXPECT_THAT(wrong(check), IsEmpty());
    EXPECT_THAT(to_string(check), HasSubstr(sentence));
  }
}

TEST(CheckGradients, LeavesValuesAndNoGradients) {
  Square stage(DType::F32, Fault::None);
  const Parameter& weight = *stage.parameters()[0];
  const std::vector<float> before(weight.value.as<float>().begin(), weight.value.as<float>().end());
  static_cast<void>(check_gradients(stage, input_of(DType::F32)));

  EXPECT_THAT(std::vector<float>(weight.value.as<float>().begin(), weight.value.as<float>().end()),
              testing::ElementsAreArray(before));
  EXPECT_THAT(weight.gradient.as<float>(), testing::Each(0.0F));
}

/// Relus bend, and the last stage's loss is what is differentiated.
TEST(CheckGradients, HoldsForTheStagesOfAModel) {
  for (const DType dtype : {DType::F32, DType::F64}) {
    ModelSpec model = parse_model("mlp:64-12-12-10,norm,residual,dropout=0.2");
    model.dtype = dtype;
    model.inputs[0].dtype = dtype;
    const std::vector<int> boundaries = {0, 1, model.layer_count()};
    const auto stages = build_stages(model, boundaries, 3);
    Tensor hidden(dtype, {6, 12});
    for (std::int64_t i = 0; i < hidden.elements(); ++i) {
      const double value = std::sin(static_cast<double>(i));
      const auto at = static_cast<std::size_t>(i);
      if (dtype == DType::F64) {
        hidden.as<double>()[at] = value;
      } else {
        hidden.as<float>()[at] = static_cast<float>(value);
      }
    }
    Tensor labels(DType::I32, {6});
    for (std::size_t i = 0; i < 6; ++i) labels.as<std::int32_t>()[i] = static_cast<int>(i);
    const GradientCheck check =
        check_gradients(*stages[1], TensorList(std::move(hidden)), TensorList(std::move(labels)));

    EXPECT_TRUE(check.holds()) << to_string(check);
    EXPECT_GT(check.tensors.size(), 4U);
  }
}

TEST(CheckGradients, RefusesOutputsThatAreTooCoarse) {
  ModelSpec model = parse_model("mlp:64-8-10");
  model.precision = DType::F16;
  const std::vector<int> boundaries = {0, 1, model.layer_count()};
  const auto stages = build_stages(model, boundaries, 3);
  Tensor input(DType::F32, {2, 64});
  input.fill_zero();

  EXPECT_THAT([&] { std::ignore = check_gradients(*stages[0], TensorList(std::move(input))); },
              ThrowsMessage<InvalidArgument>(HasSubstr("output 0 is f16")));
}

}  // namespace
}  // namespace millrace
