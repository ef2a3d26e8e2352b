// Central differences of a stage, element by element, against its backward passes.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/core/random.hpp"
#include "millrace/training/checks.hpp"

namespace millrace {
namespace {

Tensor copy_of(const Tensor& tensor) {
  if (!tensor) return {};
  Tensor copy(tensor.dtype(), tensor.dims());
  std::memcpy(copy.data(), tensor.data(), tensor.bytes());
  return copy;
}

TensorList copy_of(const TensorList& list) {
  TensorList copy;
  for (std::size_t i = 0; i < list.size(); ++i) copy.push_back(copy_of(list[i]));
  return copy;
}

bool is_real(const Tensor& tensor) {
  return tensor && (tensor.dtype() == DType::F32 || tensor.dtype() == DType::F64);
}

double element(const Tensor& tensor, std::int64_t index) {
  const auto i = static_cast<std::size_t>(index);
  return tensor.dtype() == DType::F64 ? tensor.as<double>()[i]
                                      : static_cast<double>(tensor.as<float>()[i]);
}

/// Gives the value as the tensor has it.
double set_element(Tensor& tensor, std::int64_t index, double value) {
  const auto i = static_cast<std::size_t>(index);
  if (tensor.dtype() == DType::F64) return tensor.as<double>()[i] = value;
  return static_cast<double>(tensor.as<float>()[i] = static_cast<float>(value));
}

/// The stage with one unit, and the function J that is differentiated.
class Subject {
 public:
  Subject(StageBody& stage,
          const TensorList& inputs,
          const TensorList& targets,
          const GradientCheckOptions& options)
      : stage_(stage), inputs_(copy_of(inputs)), targets_(targets), options_(options) {
    stage.reserve(1, 1);
  }

  [[nodiscard]] TensorList& inputs() { return inputs_; }

  /// J at the values as they are.
  double objective() {
    const double value = forward();
    stage_.abandon_step();
    return value;
  }

  /// Gradients of the inputs, those of the parameters added up in them.
  TensorList gradients(bool in_halves) {
    forward();
    if (!in_halves) return stage_.backward(context(), std::move(output_gradients_));
    TensorList gradients = stage_.backward_input(context(), std::move(output_gradients_));
    stage_.backward_weight(context());
    return gradients;
  }

 private:
  PassContext context() {
    PassContext context;
    context.seed = options_.seed;
    if (targets_.empty()) return context;
    context.targets = &targets_;
    context.loss = &loss_;
    return context;
  }

  /// Also makes the gradients of the outputs.
  double forward() {
    loss_ = {};
    output_gradients_ = {};
    const TensorList outputs = stage_.forward(context(), copy_of(inputs_));
    if (!targets_.empty()) return loss_.sum;
    double sum = 0;
    for (std::size_t i = 0; i < outputs.size(); ++i) sum += weighted(outputs[i], i);
    return sum;
  }

  double weighted(const Tensor& output, std::size_t number) {
    require(is_real(output),
            "the gradients of a stage can be checked where its outputs are f32 or f64; output " +
                std::to_string(number) + " is " + name_of(output.dtype()));
    Tensor gradient(output.dtype(), output.dims());
    const RandomKey key{options_.seed, Purpose::Test, 0, 0, static_cast<std::uint32_t>(number)};
    double sum = 0;
    for (std::int64_t i = 0; i < output.elements(); ++i) {
      const double factor = 2 * random_uniform(key, static_cast<std::uint32_t>(i)) - 1;
      sum += set_element(gradient, i, factor) * element(output, i);
    }
    output_gradients_.push_back(std::move(gradient));
    return sum;
  }

  StageBody& stage_;
  TensorList inputs_;
  const TensorList& targets_;
  const GradientCheckOptions& options_;
  LossSum loss_;
  TensorList output_gradients_;
};

/// Central difference along one element.
double difference(Subject& subject, Tensor& tensor, std::int64_t index, double step) {
  const double value = element(tensor, index);
  const double above = set_element(tensor, index, value + step);
  const double high = subject.objective();
  const double below = set_element(tensor, index, value - step);
  const double low = subject.objective();
  set_element(tensor, index, value);
  return (high - low) / (above - below);
}

/// Of two steps the one that is nearer.
double difference_near(Subject& subject, Tensor& tensor, std::int64_t index, double backward) {
  const double unit = tensor.dtype() == DType::F64 ? 6e-6 : 4e-3;
  const double step = unit * std::max(1.0, std::abs(element(tensor, index)));
  const double wide = difference(subject, tensor, index, step);
  const double narrow = difference(subject, tensor, index, step / 4);
  return std::abs(wide - backward) <= std::abs(narrow - backward) ? wide : narrow;
}

TensorCheck compared(Subject& subject,
                     Tensor& tensor,
                     const Tensor& gradient,
                     std::string name,
                     const GradientCheckOptions& options) {
  TensorCheck check;
  check.name = std::move(name);
  const std::int64_t all = tensor.elements();
  check.elements = options.elements > 0 ? std::min(all, options.elements) : all;
  double largest = 0, worst = -1;
  for (std::int64_t k = 0; k < check.elements; ++k) {
    const std::int64_t index = k * all / check.elements;
    const double backward = element(gradient, index);
    const double measured = difference_near(subject, tensor, index, backward);
    largest = std::max({largest, std::abs(backward), std::abs(measured)});
    const double error = std::abs(backward - measured);
    if (error <= worst) continue;
    worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
    check.index = index;
    check.backward = backward;
    check.difference = measured;
  }
  check.error = worst > 0 ? worst / (largest > 0 ? largest : 1) : 0;
  return check;
}

/// Without running statistics, whose "gradient" is something else.
std::vector<Parameter*> trained(StageBody& stage) {
  std::vector<Parameter*> parameters;
  for (Parameter* parameter : stage.parameters())
    if (parameter->role == ParameterRole::Trained) parameters.push_back(parameter);
  return parameters;
}

void zero_gradients(const std::vector<Parameter*>& parameters) {
  for (Parameter* parameter : parameters) parameter->gradient.fill_zero();
}

std::vector<Tensor> gradients_of(const std::vector<Parameter*>& parameters) {
  std::vector<Tensor> gradients;
  for (const Parameter* parameter : parameters) gradients.push_back(copy_of(parameter->gradient));
  return gradients;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() &&
         (a.bytes() == 0 || std::memcmp(a.data(), b.data(), a.bytes()) == 0);
}

/// Whether `twice` is two times `once`, within rounding.
bool is_double(const Tensor& twice, const Tensor& once) {
  double largest = 0, error = 0;
  for (std::int64_t i = 0; i < once.elements(); ++i) {
    largest = std::max(largest, std::abs(element(once, i)));
    error = std::max(error, std::abs(element(twice, i) - 2 * element(once, i)));
  }
  return error <= 1e-3 * largest;
}

/// What is wrong beside the numbers. The gradients hold those of one unit.
std::vector<std::string> faults_of(Subject& subject,
                                   StageBody& stage,
                                   const std::vector<Tensor>& once,
                                   const TensorList& input_gradients) {
  std::vector<std::string> faults;
  const auto parameters = trained(stage);
  if (stage.stashed_units() > 0)
    faults.push_back(std::to_string(stage.stashed_units()) +
                     " unit(s) are still stashed after the last pass");
  static_cast<void>(subject.gradients(true));
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (!is_double(parameters[i]->gradient, once[i]))
      faults.push_back("backward_weight does not add to the gradient of '" + parameters[i]->name +
                       "': a second unit of the same values does not double it");
  zero_gradients(parameters);
  const TensorList whole = subject.gradients(false);
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (!same_bits(parameters[i]->gradient, once[i]))
      faults.push_back("backward gives '" + parameters[i]->name +
                       "' other bits than backward_input and backward_weight");
  for (std::size_t i = 0; i < std::min(whole.size(), input_gradients.size()); ++i)
    if (!same_bits(whole[i], input_gradients[i]))
      faults.push_back("backward gives input " + std::to_string(i) +
                       " other bits than backward_input");
  zero_gradients(parameters);
  return faults;
}

double tolerance_of(const GradientCheckOptions& options,
                    const std::vector<Parameter*>& parameters,
                    const TensorList& inputs) {
  if (options.tolerance) return *options.tolerance;
  bool exact = true;
  for (const Parameter* parameter : parameters)
    exact = exact && parameter->value.dtype() == DType::F64;
  for (std::size_t i = 0; i < inputs.size(); ++i) exact = exact && inputs[i].dtype() != DType::F32;
  return exact ? 1e-6 : 1e-2;
}

std::string line_of(const TensorCheck& check) {
  std::array<char, 160> numbers{};
  std::snprintf(numbers.data(),
                numbers.size(),
                ": relative difference %.2e over %lld elements, the largest at %lld: backward "
                "%.6g, difference %.6g",
                check.error,
                static_cast<long long>(check.elements),
                static_cast<long long>(check.index),
                check.backward,
                check.difference);
  return (check.holds ? "right  " : "WRONG  ") + check.name + numbers.data() + "\n";
}

}  // namespace

bool GradientCheck::holds() const {
  return faults.empty() &&
         std::all_of(
             tensors.begin(), tensors.end(), [](const TensorCheck& check) { return check.holds; });
}

const TensorCheck* GradientCheck::worst() const {
  const auto found = std::max_element(
      tensors.begin(), tensors.end(), [](const TensorCheck& a, const TensorCheck& b) {
        return a.error < b.error;
      });
  return found == tensors.end() ? nullptr : &*found;
}

GradientCheck check_gradients(StageBody& stage,
                              const TensorList& inputs,
                              const TensorList& targets,
                              const GradientCheckOptions& options) {
  const auto parameters = trained(stage);
  Subject subject(stage, inputs, targets, options);
  zero_gradients(parameters);
  const TensorList input_gradients = subject.gradients(true);
  const std::vector<Tensor> gradients = gradients_of(parameters);
  GradientCheck check;
  check.faults = faults_of(subject, stage, gradients, input_gradients);
  for (std::size_t i = 0; i < parameters.size(); ++i)
    check.tensors.push_back(
        compared(subject, parameters[i]->value, gradients[i], parameters[i]->name, options));
  for (std::size_t i = 0; i < std::min(inputs.size(), input_gradients.size()); ++i)
    if (is_real(inputs[i]) && input_gradients[i])
      check.tensors.push_back(compared(
          subject, subject.inputs()[i], input_gradients[i], "input " + std::to_string(i), options));
  const double tolerance = tolerance_of(options, parameters, inputs);
  for (TensorCheck& tensor : check.tensors) tensor.holds = tensor.error <= tolerance;
  zero_gradients(stage.parameters());
  return check;
}

std::string to_string(const GradientCheck& check) {
  std::string text;
  for (const TensorCheck& tensor : check.tensors) text += line_of(tensor);
  for (const std::string& fault : check.faults) text += "WRONG  " + fault + "\n";
  return text;
}

}  // namespace millrace
