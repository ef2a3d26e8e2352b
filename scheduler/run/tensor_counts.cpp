// One sentence for each way to give too many or too few.
#include "run/tensor_counts.hpp"

#include <string>

#include "millrace/core/error.hpp"

namespace millrace::run {

namespace {

[[noreturn]] void refuse(const char* what,
                         std::size_t given,
                         std::size_t wanted,
                         const char* because) {
  throw InvalidArgument(std::string(what) + " " + std::to_string(given) +
                        (given == 1 ? " tensor" : " tensors") + ", wanted " +
                        std::to_string(wanted) + ": " + because);
}

}  // namespace

void TensorCounts::forward_takes(const TensorList& inputs) {
  if (inputs_ == kUnknown) inputs_ = inputs.size();
  if (inputs.size() != inputs_)
    refuse("its inputs are", inputs.size(), inputs_, "as many as for the first unit of the step");
}

void TensorCounts::forward_gives(const TensorList& outputs) {
  if (outputs.empty()) refuse("it gave", 0, 1, "the next stage lives on its outputs");
  if (outputs_ == kUnknown) outputs_ = outputs.size();
  if (outputs.size() != outputs_)
    refuse("it gave", outputs.size(), outputs_, "as many as for the first unit of the step");
}

void TensorCounts::last_forward_gives(const TensorList& outputs) {
  if (!outputs.empty())
    refuse("it gave", outputs.size(), 0, "the last stage gives its loss alone in training");
}

void TensorCounts::backward_takes(const TensorList& output_gradients) const {
  if (output_gradients.size() != outputs_)
    refuse("its output gradients are",
           output_gradients.size(),
           outputs_,
           "one for each output of its forward");
}

void TensorCounts::backward_gives(const TensorList& input_gradients) const {
  if (input_gradients.size() != inputs_)
    refuse("it gave", input_gradients.size(), inputs_, "a gradient for each input of its forward");
}

void TensorCounts::first_backward_gives(const TensorList& input_gradients) const {
  if (!input_gradients.empty()) backward_gives(input_gradients);
}

}  // namespace millrace::run
