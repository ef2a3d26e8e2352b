// The text of message tags, for reports.
#include "millrace/transport/endpoint.hpp"

#include <array>

namespace millrace {

namespace {

constexpr std::uint64_t kFirstEvaluation = std::uint64_t{1} << 63U;

constexpr std::array kLabels = {"values",
                                "the parts of the model",
                                "the size of the data",
                                "the loss",
                                "tied weights",
                                "the gradient norm",
                                "the weights' hash",
                                "what was measured",
                                "plan and settings",
                                "a checkpoint",
                                "what the optimizer moved"};

/// Of a stage's gradient all-reduce over data-parallel replicas; no other collective has a
/// replica and a round.
bool is_of_copies(const MessageTag& tag) {
  return tag.replica.value > 0 && tag.micro_batch.value > 0;
}

std::string gradients_of_copies(const MessageTag& tag) {
  const bool are_added = tag.micro_batch.value > 1;
  return std::string(are_added ? "summed " : "") + "gradients of stage " +
         std::to_string(tag.stage.value) + " from copy " + std::to_string(tag.slice.value) +
         " of the pipeline";
}

/// Received tags may name what this version does not know.
const char* name_of_label(Slice label) {
  return label.index() < kLabels.size() ? kLabels[label.index()] : kLabels.front();
}

}  // namespace

std::string name_of_step(std::uint64_t step) {
  if (step < kFirstEvaluation) return "step " + std::to_string(step);
  return "evaluation " + std::to_string(step - kFirstEvaluation);
}

std::string to_string(const MessageTag& tag) {
  const std::string step = " of " + name_of_step(tag.step);
  if (tag.direction == Direction::Collective && is_of_copies(tag))
    return gradients_of_copies(tag) + step;
  if (tag.direction == Direction::Collective)
    return std::string("agreement on ") + name_of_label(tag.slice) + step;
  std::string text = tag.direction == Direction::Forward ? "activation" : "gradient";
  text += " for stage " + std::to_string(tag.stage.value);
  if (tag.replica.value != 0) text += ", replica " + std::to_string(tag.replica.value);
  text += ", micro-batch " + std::to_string(tag.micro_batch.value);
  if (tag.slice.value != 0) text += ", slice " + std::to_string(tag.slice.value);
  if (tag.edge != 0) text += ", link " + std::to_string(tag.edge);
  return text + step;
}

int exit_code_of(const std::exception& error) {
  if (dynamic_cast<const InvalidArgument*>(&error) != nullptr) return exit_code::kUsage;
  if (dynamic_cast<const DataError*>(&error) != nullptr) return exit_code::kCorruptData;
  if (dynamic_cast<const Mismatch*>(&error) != nullptr) return exit_code::kMismatch;
  if (dynamic_cast<const PeerHangs*>(&error) != nullptr) return exit_code::kHang;
  if (dynamic_cast<const PeerLost*>(&error) != nullptr) return exit_code::kLostPeer;
  if (dynamic_cast<const Cancelled*>(&error) != nullptr) return exit_code::kLostPeer;
  try {
    std::rethrow_if_nested(error);
  } catch (const std::exception& cause) {
    // What a pass was given wrongly is not the fault of the command line.
    const int code = exit_code_of(cause);
    return code == exit_code::kUsage ? exit_code::kFailed : code;
  }
  return exit_code::kFailed;
}

}  // namespace millrace
