// A mini-batch that lies in numpy arrays, cut into micro-batches without a copy.
#pragma once

#include <pybind11/numpy.h>
#include <vector>

#include "millrace/scheduler/run/executor.hpp"
#include "millrace/training/dataset.hpp"

namespace millrace::python {

namespace py = pybind11;

/// Rows of arrays, in their order; micro-batch sizes as micro_batch_sizes has them. Where sequences
/// are cut into slices, every array is [samples, positions, ...], and a slice of it a copy.
/// Thread-safety: the StepData calls from any thread.
class ArrayData final : public StepData {
 public:
  /// `inputs` and `targets`: an array or a tuple of arrays, a row per sample. Needs the lock.
  /// Throws InvalidArgument when they have other numbers of rows or, with slices, of positions.
  ArrayData(const py::object& inputs, const py::object& targets, int micro_batches, int slices);

  [[nodiscard]] std::int64_t samples() const { return samples_; }

  TensorList inputs(const Unit& unit) override { return rows(inputs_, unit); }
  TensorList targets(const Unit& unit) override { return rows(targets_, unit); }
  [[nodiscard]] std::int64_t first_sample(const Unit& unit) const override {
    return first_[unit.micro_batch.index()];
  }
  [[nodiscard]] std::int64_t first_position(const Unit& unit) const override {
    return positions_[unit.slice.index()];
  }

 private:
  [[nodiscard]] TensorList rows(const std::vector<py::array>& arrays, const Unit& unit) const;
  void cut_positions(int slices);

  std::int64_t samples_ = -1;
  std::vector<py::array> inputs_, targets_;
  std::vector<std::int64_t> first_;            // of each micro-batch; one more at the end
  std::vector<std::int64_t> positions_ = {0};  // the first of each slice; with slices one more
};

/// The arrays as a data set, without a copy; with `sequences` their second extent is positions.
/// Needs the lock. Throws InvalidArgument as ArrayData.
[[nodiscard]] Dataset dataset_of(const py::object& inputs,
                                 const py::object& targets,
                                 bool sequences);

}  // namespace millrace::python
