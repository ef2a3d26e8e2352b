// Every member sends its fields as lines of text and reads those of all others.
#include "training/agreement.hpp"

#include <iomanip>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/text.hpp"
#include "millrace/training/ranks.hpp"
#include "millrace/training/settings.hpp"
#include "millrace/training/state.hpp"

namespace millrace {

namespace {

/// Names and values, in the order in which they are compared. Who says nothing does not know.
using Fields = std::vector<std::pair<std::string, std::string>>;

/// All digits: two rates that differ in the last one are two rates.
std::string lines_of(const Fields& fields) {
  std::string text;
  for (const auto& field : fields) {
    for (const char letter : field.second) text += letter == '\n' ? ' ' : letter;
    text += '\n';
  }
  return text;
}

std::vector<std::string> values_of(const std::string& text) {
  std::vector<std::string> values;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) values.push_back(line);
  return values;
}

/// What the first member says that says something else than one before it; all find the same.
std::string difference(const Fields& mine, const std::vector<std::vector<std::string>>& said) {
  for (std::size_t field = 0; field < mine.size(); ++field) {
    std::size_t first = said.size();
    for (std::size_t member = 0; member < said.size(); ++member) {
      const std::string value = field < said[member].size() ? said[member][field] : std::string();
      if (value.empty()) continue;
      if (first == said.size()) first = member;
      if (said[first][field] != value)
        return mine[field].first + " differs: rank " + std::to_string(first) + " has '" +
               said[first][field] + "', rank " + std::to_string(member) + " has '" + value + "'";
    }
  }
  return {};
}

/// Nobody leaves before all know why, or others would only find a rank lost.
void wait_for_all(ProcessGroup& group, Label label) {
  try {
    double nothing = 0;
    group.sum(std::span<double>(&nothing, 1), label);
  } catch (const TransportError&) {
    return;  // who has gone knew it already
  }
}

/// The values of every member.
std::vector<std::vector<std::string>> said_by_all(ProcessGroup& group,
                                                  const Fields& mine,
                                                  Label label) {
  std::vector<std::vector<std::string>> said;
  for (const std::string& text : group.gather(lines_of(mine), label))
    said.push_back(values_of(text));
  return said;
}

void compare(ProcessGroup& group, const Fields& mine, Label label) {
  if (group.size() == 1) return;
  const std::string sentence = difference(mine, said_by_all(group, mine, label));
  if (sentence.empty()) return;
  wait_for_all(group, label);
  throw Mismatch(sentence);
}

std::string joined(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers) text += (text.empty() ? "" : ",") + std::to_string(number);
  return text;
}

/// Who has no data does not know.
std::string lengths_of(const Dataset& data) {
  if (data.width() == 0) return {};
  return std::string(name_of(data.has_documents() ? Lengths::Bucket : Lengths::Fixed));
}

/// None for a member that does not have all bytes.
std::string digits_of(std::optional<std::uint64_t> digest) {
  if (!digest) return {};
  std::ostringstream text;
  text << std::hex << std::setw(16) << std::setfill('0') << *digest;
  return text.str();
}

/// Savers talk to each other, so all save, at the same steps and in the same way.
std::string checkpoints_of(const SaveOptions& save) {
  if (save.folder.empty()) return "not saved";
  return "saved every " + std::to_string(save.every_steps.value_or(0)) + " steps" +
         (save.background ? "" : ", each before the next step");
}

/// Everything that decides bits, or whether two ranks understand each other.
Fields settings_of(const TrainerParts& parts, const TrainerOptions& options) {
  const Program& program = parts.executor->program();
  Fields fields = build_fields();
  const Fields own = {{"schedule", program.name},
                      {"plan", plan_hash(program)},
                      {"cut", parts.boundaries.empty() ? "even" : joined(parts.boundaries)},
                      {"copies of the pipeline", std::to_string(parts.seat.grid().data())},
                      {"precision", name_of(parts.precision)},
                      {"checkpoints", checkpoints_of(options.save)}};
  fields.insert(fields.end(), own.begin(), own.end());
  const Fields table = agreed_settings(with_loss_scale(options, parts.precision));
  fields.insert(fields.end(), table.begin(), table.end());
  return fields;
}

}  // namespace

TrainerParts agreed(TrainerParts parts, const TrainerOptions& options) {
  if (parts.group != nullptr) compare(*parts.group, settings_of(parts, options), Label::Settings);
  return parts;
}

void agree_on_data(ProcessGroup& group, const Dataset& data, std::int64_t batch_size) {
  if (group.size() == 1) return;
  compare(group,
          {{"lengths", lengths_of(data)},
           {"number of samples", std::to_string(data.epoch_size())},
           {"batch size", std::to_string(batch_size)},
           {"data", contents_digest(data)}},
          Label::Data);
}

void refuse_batches(ProcessGroup& group, const BatchDigest& mine) {
  const Fields fields = {{"inputs of the mini-batch", digits_of(mine.of_inputs())},
                         {"targets of the mini-batch", digits_of(mine.of_targets())}};
  const std::string found = difference(fields, said_by_all(group, fields, Label::Data));
  wait_for_all(group, Label::Data);
  throw Mismatch(
      found +
      ": every process must be given the same mini-batches in the same order. The likely "
      "cause is a shuffle that each process draws for itself: give it the same seed in "
      "all of them (PyTorch: DataLoader(..., shuffle=True, "
      "generator=torch.Generator().manual_seed(1)))");
}

void agree_on_place(ProcessGroup& group,
                    const TrainingCounters& counters,
                    const BatchSource& batches) {
  compare(group,
          {{"mini-batches of an epoch", std::to_string(batches.batches_per_epoch())},
           {"epoch to begin with", std::to_string(counters.position.epoch)},
           {"mini-batch to begin with", std::to_string(counters.position.batch)},
           {"updates done", std::to_string(counters.global_step)},
           {"mini-batches run", std::to_string(counters.mini_batches)},
           {"micro-batches of the next update", std::to_string(counters.partial.micro_batches)},
           {"seed", std::to_string(counters.seed)}},
          Label::Data);
}

}  // namespace millrace
