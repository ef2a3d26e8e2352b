// The text of message tags, for reports.
#include "millrace/transport/endpoint.hpp"

namespace millrace {

namespace {

constexpr std::uint64_t kFirstEvaluation = std::uint64_t{1} << 63U;

std::string name_of_step(std::uint64_t step) {
  if (step < kFirstEvaluation) return " of step " + std::to_string(step);
  return " of evaluation " + std::to_string(step - kFirstEvaluation);
}

}  // namespace

std::string to_string(const MessageTag& tag) {
  const std::string step = name_of_step(tag.step);
  if (tag.direction == Direction::Collective)
    return "collective " + std::to_string(tag.stage.value) + step;
  std::string text = tag.direction == Direction::Forward ? "activation" : "gradient";
  text += " for stage " + std::to_string(tag.stage.value);
  if (tag.replica.value != 0) text += ", replica " + std::to_string(tag.replica.value);
  text += ", micro-batch " + std::to_string(tag.micro_batch.value);
  if (tag.slice.value != 0) text += ", slice " + std::to_string(tag.slice.value);
  return text + step;
}

}  // namespace millrace
