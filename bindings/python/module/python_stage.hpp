// A stage that is a Python object: its passes are called with numpy arrays, its parameters are its
// own arrays.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <pybind11/numpy.h>
#include <string>
#include <vector>

#include "millrace/stages/stage.hpp"
#include "module/python_failure.hpp"
#include "module/tensors.hpp"

namespace millrace::python {

namespace py = pybind11;

/// millrace.Unit: what a pass knows about the unit it works on, and what a stage keeps with it
/// from its forward to its last backward.
struct PythonUnit {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  int micro_batch = 0;
  int slice = 0;
  int slices = 1;  ///< of its micro-batch
  std::int64_t first_sample = 0;
  std::int64_t first_position = 0;  ///< of the slice in its sequence
  bool training = true;
  double loss_scale = 1;
  py::object targets = py::none();  ///< a tuple of arrays, of the last stage
  py::object kept = py::none();     ///< the stage's own
  py::object inputs = py::none();   ///< kept for a recompute; not seen by the stage
  bool is_last = false;
  LossSum loss = {};
};

/// Calls forward, backward_input and backward_weight (or backward) of a Python object. Passes take
/// the interpreter's lock by themselves; a traceback ends the step with its text.
/// Thread-safety: as of StageBody.
class PythonStage final : public StageBody {
 public:
  /// Reads `stage.parameters`, a dict of float32 arrays, and makes `stage.gradients` unless it is
  /// there; `stage.tensors` says as what passes are handed tensors. `number` is for sentences.
  /// Needs the lock. Throws InvalidArgument.
  PythonStage(py::object stage, std::size_t number);
  ~PythonStage() override;

  TensorList forward(const PassContext& context, TensorList inputs) override;
  TensorList backward_input(const PassContext& context, TensorList output_gradients) override;
  void backward_weight(const PassContext& context) override;
  TensorList backward(const PassContext& context, TensorList output_gradients) override;
  void recompute(const PassContext& context) override;

  [[nodiscard]] bool splits_backward() const override { return splits_; }
  [[nodiscard]] std::vector<Parameter*> parameters() override;
  [[nodiscard]] std::size_t stashed_units() const override { return units_.size(); }
  void abandon_step() noexcept override;

  /// Throws InvalidArgument when the stage has exchanged an array of its parameters or gradients:
  /// training would go on with the old one. Needs the lock.
  void require_same_arrays() const;

  /// Whether forward is given copies of its inputs: they lie in memory that others use again, but
  /// Python may hold on to what it was given.
  void copy_inputs(bool copies) { copies_inputs_ = copies; }

 private:
  /// Arrays that a parameter's value and gradient live in.
  struct Arrays {
    py::array_t<float> value, gradient;
  };

  /// What a loss was over the rows of a part of a unit.
  struct HalfLoss {
    double sum = 0, weight = 0;
  };

  [[nodiscard]] std::optional<HalfLoss> loss_of(const PythonUnit& unit,
                                                const py::tuple& arguments,
                                                const py::slice& rows) const;
  [[nodiscard]] std::vector<HalfLoss> losses_of_halves(const PythonUnit& unit,
                                                       const py::tuple& arguments);
  void require_sum(const LossSum& loss, const std::vector<HalfLoss>& halves) const;
  void take(const std::string& name, const py::handle& value);
  [[nodiscard]] py::array_t<float> array_of(const py::handle& value, const std::string& what) const;
  [[nodiscard]] std::shared_ptr<PythonUnit> new_unit(const PassContext& context) const;
  [[nodiscard]] std::shared_ptr<PythonUnit> unit_of(const PassContext& context) const;
  TensorList passed(const char* pass, const PassContext& context, TensorList tensors);

  py::object stage_;
  std::size_t number_;
  bool splits_ = true;
  bool copies_inputs_ = false;
  bool knows_loss_ = false;  // it was seen that the loss is a sum
  Handed handed_ = Handed::Numpy;
  std::vector<std::string> names_;
  std::deque<Arrays> arrays_;
  std::deque<Parameter> parameters_;
  std::map<Unit, std::shared_ptr<PythonUnit>> units_;
};

}  // namespace millrace::python
