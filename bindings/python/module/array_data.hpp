// A mini-batch that lies in numpy arrays, cut into micro-batches without a copy.
#pragma once

#include <pybind11/numpy.h>
#include <vector>

#include "millrace/scheduler/run/executor.hpp"

namespace millrace::python {

namespace py = pybind11;

/// Rows of arrays, in their order; micro-batch sizes as micro_batch_sizes has them.
/// Thread-safety: the StepData calls from any thread.
class ArrayData final : public StepData {
 public:
  /// `inputs` and `targets`: an array or a tuple of arrays, a row per sample. Needs the lock.
  /// Throws InvalidArgument when they have other numbers of rows.
  ArrayData(const py::object& inputs, const py::object& targets, int micro_batches);

  [[nodiscard]] std::int64_t samples() const { return samples_; }

  TensorList inputs(const Unit& unit) override { return rows(inputs_, unit); }
  TensorList targets(const Unit& unit) override { return rows(targets_, unit); }
  [[nodiscard]] std::int64_t first_sample(const Unit& unit) const override {
    return first_[unit.micro_batch.index()];
  }

 private:
  [[nodiscard]] TensorList rows(const std::vector<py::array>& arrays, const Unit& unit) const;
  void take(std::vector<py::array>& arrays, const py::object& given, const char* what);

  std::int64_t samples_ = -1;
  std::vector<py::array> inputs_, targets_;
  std::vector<std::int64_t> first_;  // of each micro-batch; one more at the end
};

}  // namespace millrace::python
