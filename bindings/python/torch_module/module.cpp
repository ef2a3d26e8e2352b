// The compiled half of `import millrace.torch`: a Python module of PyTorch as a stage of ours.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "millrace/core/error.hpp"
#include "millrace/stages/partition.hpp"
#include "millrace/torch/dropout.hpp"
#include "millrace/torch/fields.hpp"
#include "module/native_stage.hpp"
#include "torch_module/python_torch_stage.hpp"

namespace millrace::python {

namespace {

using namespace py::literals;

DType precision_of(const std::string& name) {
  require(name == "f32" || name == "bf16",
          "precision is '" + name + "'; a module of PyTorch computes in f32 or bf16");
  return name == "bf16" ? DType::BF16 : DType::F32;
}

at::Tensor dropout(const at::Tensor& x, double rate, std::uint32_t layer) {
  return TorchDropoutImpl(rate, layer).forward(x);
}

}  // namespace

PYBIND11_MODULE(_millrace_torch, module) {
  module.doc() = "The compiled half of millrace.torch; import millrace.torch instead.";
  module.def("dropout",
             &dropout,
             "x"_a,
             "rate"_a,
             "layer"_a,
             "Dropout in training, by numbers of (seed, step, sample, layer).");
  module.def("fields", &torch_fields, "Names and values of what PyTorch computes with here.");
  module.def("boundaries", &even_boundaries, "layers"_a, "stages"_a, "Stages of as many layers.");
  module.def(
      "boundaries",
      [](const std::vector<double>& costs, int stages) {
        return balanced_boundaries(costs, stages);
      },
      "costs"_a,
      "stages"_a,
      "The cut whose dearest stage is cheapest.");
  module.def(
      "check_boundaries",
      [](const std::vector<int>& boundaries, int layers) { check_boundaries(boundaries, layers); },
      "boundaries"_a,
      "layers"_a);
  py::class_<TorchStageMaker>(module, "TorchStage", "A stage that calls Python objects.")
      .def(py::init([](const py::object& forward,
                       const py::object& loss,
                       const NamedTensors& parameters,
                       const NamedTensors& buffers,
                       std::uint32_t number,
                       const std::string& precision,
                       bool seeds) {
             return TorchStageMaker{{.forward = forward,
                                     .loss = loss,
                                     .parameters = parameters,
                                     .buffers = buffers,
                                     .number = number,
                                     .precision = precision_of(precision),
                                     .seeds = seeds}};
           }),
           py::kw_only(),
           "forward"_a,
           "loss"_a,
           "parameters"_a,
           "buffers"_a,
           "number"_a,
           "precision"_a,
           "seeds"_a)
      .def("__millrace_stage__",
           [](const TorchStageMaker& self) { return capsule_of(made_torch_stage(self.parts)); });
}

}  // namespace millrace::python
