// A mini-batch in numpy arrays; see array_data.hpp.
#include "module/array_data.hpp"

#include "millrace/core/error.hpp"
#include "millrace/training/batch.hpp"
#include "module/tensors.hpp"

namespace millrace::python {

ArrayData::ArrayData(const py::object& inputs, const py::object& targets, int micro_batches) {
  take(inputs_, inputs, "inputs");
  take(targets_, targets, "targets");
  require(!inputs_.empty(), "inputs is None; a step reads at least one array");
  first_ = {0};
  for (const std::int64_t size : micro_batch_sizes(samples_, micro_batches))
    first_.push_back(first_.back() + size);
}

void ArrayData::take(std::vector<py::array>& arrays, const py::object& given, const char* what) {
  if (given.is_none()) return;
  const bool several = py::isinstance<py::tuple>(given) || py::isinstance<py::list>(given);
  const py::tuple all = several ? py::tuple(given) : py::make_tuple(given);
  for (const py::handle one : all) {
    const auto array = py::array::ensure(one, py::array::c_style);
    if (!array) throw py::error_already_set();
    require(array.ndim() > 0,
            std::string(what) + " has a single number; a row per sample is needed");
    if (samples_ < 0) samples_ = array.shape(0);
    require(array.shape(0) == samples_,
            std::string(what) + " has " + std::to_string(array.shape(0)) +
                " rows where others have " + std::to_string(samples_));
    arrays.push_back(array);
  }
}

TensorList ArrayData::rows(const std::vector<py::array>& arrays, const Unit& unit) const {
  const py::gil_scoped_acquire locked;
  const std::size_t at = unit.micro_batch.index();
  TensorList tensors;
  for (const py::array& array : arrays)
    tensors.push_back(rows_of(array, first_[at], first_[at + 1] - first_[at]));
  return tensors;
}

}  // namespace millrace::python
