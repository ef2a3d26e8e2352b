// The text of actions: PyTorch's letters, and descriptions for reports.
#include <algorithm>
#include <array>

#include "millrace/scheduler/plan/program.hpp"

namespace millrace {

namespace {

struct OpText {
  Op op;
  const char* letters;
  const char* noun;
};

constexpr std::array<OpText, kOps> kOpTexts = {
    {{Op::Forward, "F", "forward"},
     {Op::Backward, "B", "backward"},
     {Op::BackwardInput, "I", "backward-input"},
     {Op::BackwardWeight, "W", "backward-weight"},
     {Op::Recompute, "R", "recompute"},
     {Op::SendForward, "SEND_F", "send of the activation"},
     {Op::RecvForward, "RECV_F", "receive of the activation"},
     {Op::SendBackward, "SEND_B", "send of the gradient"},
     {Op::RecvBackward, "RECV_B", "receive of the gradient"},
     {Op::ReduceGrad, "REDUCE_GRAD", "gradient reduction"},
     {Op::OptimizerStep, "STEP", "optimizer step"}}};

static_assert(std::ranges::is_sorted(kOpTexts, {}, &OpText::op), "a row is found by its op");

OpText op_text(Op op) {
  const auto row = static_cast<std::size_t>(op);
  return row < kOpTexts.size() ? kOpTexts[row] : OpText{op, "?", "?"};
}

}  // namespace

const char* letters(Op op) {
  return op_text(op).letters;
}

std::string to_string(const Action& action) {
  std::string text = std::to_string(action.stage.value);
  if (action.replica_number != 0) text += "'";
  text += letters(action.op);
  if (has_unit(action.op)) text += std::to_string(action.micro_batch.value);
  if (has_unit(action.op) && action.slice.value != 0)
    text += "." + std::to_string(action.slice.value);
  if (action.edge != 0) text += "@" + std::to_string(action.edge);
  return text;
}

std::string describe(const Action& action) {
  std::string text =
      op_text(action.op).noun + std::string(" of stage ") + std::to_string(action.stage.value);
  if (action.replica_number != 0) text += ", replica " + std::to_string(action.replica_number);
  if (has_unit(action.op)) text += ", micro-batch " + std::to_string(action.micro_batch.value);
  if (has_unit(action.op) && action.slice.value != 0)
    text += ", slice " + std::to_string(action.slice.value);
  if (action.edge != 0) text += ", link " + std::to_string(action.edge);
  return text;
}

}  // namespace millrace
