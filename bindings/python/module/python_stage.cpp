// A stage that is a Python object; see python_stage.hpp.
#include "module/python_stage.hpp"

#include <algorithm>
#include <cmath>

#include "millrace/core/error.hpp"
#include "module/let_go.hpp"

namespace millrace::python {

namespace {

/// Runs `call` with the lock; what Python raises becomes a PythonFailure.
template <class Call>
auto in_python(Call&& call) {
  const py::gil_scoped_acquire locked;
  let_go_of_waiting();
  try {
    return call();
  } catch (py::error_already_set& raised) {
    throw PythonFailure(raised);
  }
}

/// What runs in Python and returns arrays.
TensorList called(const py::object& stage, const char* pass, const py::tuple& arguments) {
  return tensors_of(stage.attr(pass)(*arguments), pass);
}

}  // namespace

PythonStage::PythonStage(py::object stage, std::size_t number)
    : stage_(std::move(stage)), number_(number) {
  const std::string whose = "stage " + std::to_string(number_);
  require(py::hasattr(stage_, "forward"), whose + " has no forward");
  if (py::hasattr(stage_, "tensors")) handed_ = handed_as(py::str(stage_.attr("tensors")));
  splits_ = py::hasattr(stage_, "backward_weight");
  const char* other = splits_ ? "backward_input" : "backward";
  require(py::hasattr(stage_, other), whose + " has no " + other);
  if (!py::hasattr(stage_, "parameters")) return;
  const py::object values = stage_.attr("parameters");
  require(py::isinstance<py::dict>(values), whose + ".parameters is no dict of names and arrays");
  if (!py::hasattr(stage_, "gradients")) stage_.attr("gradients") = py::dict();
  for (const auto& [name, value] : py::reinterpret_borrow<py::dict>(values))
    take(py::str(name), value);
}

PythonStage::~PythonStage() {
  const py::gil_scoped_acquire locked;
  parameters_.clear();
  arrays_.clear();
  units_.clear();
  stage_ = py::object();
}

py::array_t<float> PythonStage::array_of(const py::handle& value, const std::string& what) const {
  const bool fits = py::isinstance<py::array_t<float, py::array::c_style>>(value) &&
                    py::reinterpret_borrow<py::array>(value).writeable();
  require(fits,
          "stage " + std::to_string(number_) + "'s " + what +
              " is no float32 array in C order that can be written");
  return py::reinterpret_borrow<py::array_t<float>>(value);
}

void PythonStage::take(const std::string& name, const py::handle& value) {
  Arrays& arrays = arrays_.emplace_back();
  arrays.value = array_of(value, "parameter " + name);
  const py::dict gradients = stage_.attr("gradients");
  if (!gradients.contains(name.c_str()))
    gradients[name.c_str()] = py::module_::import("numpy").attr("zeros_like")(value);
  arrays.gradient = array_of(gradients[name.c_str()], "gradient " + name);
  Parameter& parameter = parameters_.emplace_back();
  parameter.name = name;
  parameter.value = borrowed(arrays.value);
  parameter.gradient = borrowed(arrays.gradient);
  require(parameter.value.dims() == parameter.gradient.dims(),
          "the gradient " + name + " is " + to_string(parameter.gradient.dims()) +
              ", its parameter " + to_string(parameter.value.dims()));
  if (py::hasattr(stage_, "no_decay"))
    parameter.decays = !stage_.attr("no_decay").attr("__contains__")(name).cast<bool>();
  names_.push_back(name);
}

void PythonStage::require_same_arrays() const {
  for (std::size_t i = 0; i < names_.size(); ++i)
    for (const auto& [attribute, array] :
         {std::pair<const char*, const py::array_t<float>*>{"parameters", &arrays_[i].value},
          {"gradients", &arrays_[i].gradient}}) {
      const py::dict dict = stage_.attr(attribute);
      const bool same =
          dict.contains(names_[i].c_str()) && py::object(dict[names_[i].c_str()]).is(*array);
      require(same,
              "stage " + std::to_string(number_) + "." + attribute + "['" + names_[i] +
                  "'] is another array than at the start; write into the array instead "
                  "(array[...] = ...)");
    }
}

std::shared_ptr<PythonUnit> PythonStage::new_unit(const PassContext& context) const {
  auto unit = std::make_shared<PythonUnit>();
  unit->seed = context.seed;
  unit->step = context.step;
  unit->micro_batch = context.micro_batch.value;
  unit->slice = context.slice.value;
  unit->slices = context.slices;
  unit->first_sample = context.first_sample;
  unit->first_position = context.first_position;
  unit->training = context.training;
  unit->loss_scale = context.loss_scale;
  unit->is_last = context.loss != nullptr;
  if (context.targets == nullptr) return unit;
  py::tuple targets(context.targets->size());
  for (std::size_t i = 0; i < context.targets->size(); ++i)
    targets[i] = handed_copy((*context.targets)[i], handed_);
  unit->targets = targets;
  return unit;
}

std::shared_ptr<PythonUnit> PythonStage::unit_of(const PassContext& context) const {
  const auto found = units_.find(context.unit());
  require(found != units_.end(), "the forward of this unit did not run");
  found->second->loss_scale = context.loss_scale;
  return found->second;
}

/// By a forward that keeps nothing; none where the stage cannot run it.
std::optional<PythonStage::HalfLoss> PythonStage::loss_of(const PythonUnit& unit,
                                                          const py::tuple& arguments,
                                                          const py::slice& rows) const {
  const auto part = std::make_shared<PythonUnit>(unit);
  part->training = false;
  const auto rows_of_all = [&](const py::tuple& arrays, std::size_t first) {
    py::list parts;
    for (std::size_t i = first; i < arrays.size(); ++i) parts.append(arrays[i][rows]);
    return parts;
  };
  try {
    part->targets = py::tuple(rows_of_all(part->targets, 0));
    stage_.attr("forward")(py::cast(part), *py::tuple(rows_of_all(arguments, 1)));
  } catch (const py::error_already_set& raised) {
    if (!raised.matches(PyExc_Exception)) throw;  // Ctrl-C
    return std::nullopt;
  }
  return HalfLoss{part->loss.sum, part->loss.weight};
}

/// Of the first unit in which there are two, before it runs. numpy's own random numbers are
/// afterwards where they were.
std::vector<PythonStage::HalfLoss> PythonStage::losses_of_halves(const PythonUnit& unit,
                                                                 const py::tuple& arguments) {
  if (knows_loss_ || !unit.is_last || !unit.training || handed_ != Handed::Numpy ||
      arguments.size() < 2 || unit.targets.is_none())
    return {};
  const auto samples = static_cast<py::ssize_t>(py::len(arguments[1]));
  if (samples < 2) return {};
  knows_loss_ = true;
  const py::object random = py::module_::import("numpy.random");
  const py::object state = random.attr("get_state")();
  const auto first = loss_of(unit, arguments, py::slice(0, samples / 2, 1));
  const auto second = loss_of(unit, arguments, py::slice(samples / 2, samples, 1));
  random.attr("set_state")(state);
  if (!first || !second) return {};
  return {*first, *second};
}

/// The mean of a unit lies between the means of its halves. The sum of a unit is the sum of theirs.
/// A declared mean (weight 1 for a unit and for each half) stays allowed.
void PythonStage::require_sum(const LossSum& loss, const std::vector<HalfLoss>& halves) const {
  if (halves.empty()) return;
  const auto [least, most] = std::minmax(halves[0].sum, halves[1].sum);
  const double sum = least + most;
  const double slack = 1e-3 * std::max(std::abs(least), std::abs(most));
  const bool weights_add_up =
      std::abs(halves[0].weight + halves[1].weight - loss.weight) <= 1e-6 * loss.weight;
  const bool is_mean = loss.sum >= least - slack && loss.sum <= most + slack;
  if (!weights_add_up || !is_mean || std::abs(loss.sum - sum) <= 2 * slack) return;
  throw InvalidArgument("stage " + std::to_string(number_) + "'s loss is a mean: " +
                        std::to_string(loss.sum) + " over the samples of a unit, " +
                        std::to_string(halves[0].sum) + " and " + std::to_string(halves[1].sum) +
                        " over its halves; unit.add_loss takes the sum over the samples, and "
                        "backward_input gives the gradient of that sum");
}

TensorList PythonStage::forward(const PassContext& context, TensorList inputs) {
  return in_python([&] {
    const auto unit = new_unit(context);
    const py::object first = py::cast(unit);
    const py::tuple arguments = copies_inputs_ ? copied_arguments_of(first, inputs, handed_)
                                               : arguments_of(first, std::move(inputs), handed_);
    const std::vector<HalfLoss> halves = losses_of_halves(*unit, arguments);
    TensorList outputs = called(stage_, "forward", arguments);
    require_sum(unit->loss, halves);
    if (context.loss != nullptr) *context.loss += unit->loss;
    if (!context.training) return outputs;
    if (context.recompute_later) {
      unit->inputs = arguments;
      unit->kept = py::none();
    }
    units_[context.unit()] = unit;
    if (context.loss != nullptr) outputs.clear();  // of the last stage training wants its loss
    return outputs;
  });
}

void PythonStage::recompute(const PassContext& context) {
  in_python([&] {
    const auto unit = unit_of(context);
    const py::tuple arguments = unit->inputs;
    stage_.attr("forward")(*arguments);
    unit->inputs = py::none();
    return 0;
  });
}

TensorList PythonStage::passed(const char* pass, const PassContext& context, TensorList tensors) {
  const auto unit = unit_of(context);
  return called(stage_, pass, arguments_of(py::cast(unit), std::move(tensors), handed_));
}

TensorList PythonStage::backward_input(const PassContext& context, TensorList gradients) {
  return in_python([&] { return passed("backward_input", context, std::move(gradients)); });
}

void PythonStage::backward_weight(const PassContext& context) {
  in_python([&] {
    const auto unit = unit_of(context);
    stage_.attr("backward_weight")(unit);
    unit->kept = py::none();
    units_.erase(context.unit());
    return 0;
  });
}

TensorList PythonStage::backward(const PassContext& context, TensorList gradients) {
  if (splits_) return StageBody::backward(context, std::move(gradients));
  return in_python([&] {
    TensorList inputs = passed("backward", context, std::move(gradients));
    unit_of(context)->kept = py::none();
    units_.erase(context.unit());
    return inputs;
  });
}

std::vector<Parameter*> PythonStage::parameters() {
  std::vector<Parameter*> all;
  for (Parameter& parameter : parameters_) all.push_back(&parameter);
  return all;
}

void PythonStage::abandon_step() noexcept {
  const py::gil_scoped_acquire locked;
  for (const auto& [of, unit] : units_) unit->kept = unit->inputs = py::none();
  units_.clear();
}

}  // namespace millrace::python
