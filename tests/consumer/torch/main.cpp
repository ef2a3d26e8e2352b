// Takes the component torch alone: a stage that gives back what it is given.
#include <millrace/torch/stage.hpp>

int main() {
  using namespace millrace;
  TorchStage stage(nullptr, [](const std::vector<at::Tensor>& inputs) { return inputs; });
  const PassContext evaluation{.training = false};
  const TensorList same = stage.forward(evaluation, TensorList(Tensor(DType::F32, {3, 2})));
  return same[0].dims() == Dims{3, 2} ? 0 : 1;
}
