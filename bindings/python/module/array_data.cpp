// A mini-batch in numpy arrays; see array_data.hpp.
#include "module/array_data.hpp"

#include "millrace/core/error.hpp"
#include "millrace/training/loader.hpp"
#include "module/tensors.hpp"

namespace millrace::python {

namespace {

/// An array or several, in C order. `samples`: the rows that all have; below 0 as long as none has
/// said.
std::vector<py::array> arrays_of(const py::object& given, const char* what, std::int64_t& samples) {
  std::vector<py::array> arrays;
  if (given.is_none()) return arrays;
  const bool several = py::isinstance<py::tuple>(given) || py::isinstance<py::list>(given);
  const py::tuple all = several ? py::tuple(given) : py::make_tuple(given);
  for (const py::handle one : all) {
    const auto array = py::array::ensure(one, py::array::c_style);
    if (!array) throw py::error_already_set();
    require(array.ndim() > 0,
            std::string(what) + " has a single number; a row per sample is needed");
    if (samples < 0) samples = array.shape(0);
    require(array.shape(0) == samples,
            std::string(what) + " has " + std::to_string(array.shape(0)) +
                " rows where others have " + std::to_string(samples));
    arrays.push_back(array);
  }
  return arrays;
}

void add(std::vector<SampleTensor>& tensors,
         const std::vector<py::array>& arrays,
         const std::string& name,
         bool sequences) {
  for (const py::array& array : arrays)
    tensors.push_back({arrays.size() == 1 ? name : name + " " + std::to_string(tensors.size()),
                       rows_of(array, 0, array.shape(0)),
                       sequences && array.ndim() > 1});
}

}  // namespace

Dataset dataset_of(const py::object& inputs, const py::object& targets, bool sequences) {
  std::int64_t samples = -1;
  Dataset data;
  data.name = "the arrays";
  add(data.inputs, arrays_of(inputs, "inputs", samples), "inputs", sequences);
  add(data.targets, arrays_of(targets, "targets", samples), "targets", sequences);
  require(!data.inputs.empty(), "inputs is None; a training reads at least one array");
  return data;
}

ArrayData::ArrayData(const py::object& inputs,
                     const py::object& targets,
                     int micro_batches,
                     int slices) {
  inputs_ = arrays_of(inputs, "inputs", samples_);
  targets_ = arrays_of(targets, "targets", samples_);
  require(!inputs_.empty(), "inputs is None; a step reads at least one array");
  first_ = {0};
  for (const std::int64_t size : micro_batch_sizes(samples_, micro_batches))
    first_.push_back(first_.back() + size);
  if (slices > 1) cut_positions(slices);
}

void ArrayData::cut_positions(int slices) {
  std::int64_t positions = -1;
  for (const std::vector<py::array>* arrays : {&inputs_, &targets_})
    for (const py::array& array : *arrays) {
      require(array.ndim() > 1 && (positions < 0 || array.shape(1) == positions), [&] {
        return "the schedule cuts sequences into " + std::to_string(slices) +
               " slices, so every array is [samples, positions, ...] of one number of positions; "
               "got one of " +
               std::string(py::str(array.attr("shape")));
      });
      positions = array.shape(1);
    }
  require(positions >= slices, [&] {
    return "sequences of " + std::to_string(positions) + " positions cannot be cut into " +
           std::to_string(slices) + " slices";
  });
  for (const std::int64_t count : micro_batch_sizes(positions, slices))
    positions_.push_back(positions_.back() + count);
}

TensorList ArrayData::rows(const std::vector<py::array>& arrays, const Unit& unit) const {
  const py::gil_scoped_acquire locked;
  const std::size_t at = unit.micro_batch.index();
  TensorList tensors;
  const std::int64_t rows = first_[at + 1] - first_[at];
  if (positions_.size() == 1) {
    for (const py::array& array : arrays) tensors.push_back(rows_of(array, first_[at], rows));
    return tensors;
  }
  const std::size_t slice = unit.slice.index();
  const py::tuple part = py::make_tuple(py::slice(first_[at], first_[at + 1], 1),
                                        py::slice(positions_[slice], positions_[slice + 1], 1));
  for (const py::array& array : arrays)
    tensors.push_back(
        rows_of(py::array::ensure(py::object(array[part]), py::array::c_style), 0, rows));
  return tensors;
}

}  // namespace millrace::python
