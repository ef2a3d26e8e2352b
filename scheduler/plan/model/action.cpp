// The text of actions: PyTorch's letters, and descriptions for reports.
#include "millrace/scheduler/plan/program.hpp"

namespace millrace {

const char* letters(Op op) {
  switch (op) {
    case Op::Forward:
      return "F";
    case Op::Backward:
      return "B";
    case Op::BackwardInput:
      return "I";
    case Op::BackwardWeight:
      return "W";
    case Op::Recompute:
      return "R";
    case Op::SendForward:
      return "SEND_F";
    case Op::RecvForward:
      return "RECV_F";
    case Op::SendBackward:
      return "SEND_B";
    case Op::RecvBackward:
      return "RECV_B";
    case Op::ReduceGrad:
      return "REDUCE_GRAD";
    case Op::OptimizerStep:
      return "STEP";
  }
  return "?";
}

namespace {

const char* noun(Op op) {
  switch (op) {
    case Op::Forward:
      return "forward";
    case Op::Backward:
      return "backward";
    case Op::BackwardInput:
      return "backward-input";
    case Op::BackwardWeight:
      return "backward-weight";
    case Op::Recompute:
      return "recompute";
    case Op::SendForward:
      return "send of the activation";
    case Op::RecvForward:
      return "receive of the activation";
    case Op::SendBackward:
      return "send of the gradient";
    case Op::RecvBackward:
      return "receive of the gradient";
    case Op::ReduceGrad:
      return "gradient reduction";
    case Op::OptimizerStep:
      return "optimizer step";
  }
  return "?";
}

}  // namespace

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
      noun(action.op) + std::string(" of stage ") + std::to_string(action.stage.value);
  if (action.replica_number != 0) text += ", replica " + std::to_string(action.replica_number);
  if (has_unit(action.op)) text += ", micro-batch " + std::to_string(action.micro_batch.value);
  if (has_unit(action.op) && action.slice.value != 0)
    text += ", slice " + std::to_string(action.slice.value);
  if (action.edge != 0) text += ", link " + std::to_string(action.edge);
  return text;
}

}  // namespace millrace
