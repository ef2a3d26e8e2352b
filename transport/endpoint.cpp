// The text of message tags, for reports.
#include "millrace/transport/endpoint.hpp"

namespace millrace {

std::string to_string(const MessageTag& tag) {
  const std::string step = " of step " + std::to_string(tag.step);
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
