// A new option that decides bits gets its line here.
#include "training/checkpoint/settings.hpp"

#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/text.hpp"
#include "millrace/scheduler/plan/verify.hpp"
#include "training/named_settings.hpp"

namespace millrace {
namespace {

std::string joined(const std::vector<std::string>& names, const char* between) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : between) + name;
  return text;
}

std::string tied_in(const Shape& shape) {
  std::vector<std::string> texts;
  for (const StageTie& tie : shape.ties) {
    std::vector<std::string> names;
    for (const StageWeight& weight : tie.weights) names.push_back(weight.name);
    texts.push_back(joined(names, " = "));
  }
  return joined(texts, "; ");
}

std::vector<std::string> texts_of(const std::vector<ParameterGroup>& groups) {
  std::vector<std::string> texts;
  for (const ParameterGroup& group : groups) texts.push_back(to_string(group));
  return texts;
}

/// Every schedule that accumulates in ascending order gives the same bits, and all do by the tree;
/// any other has its own, with messages or without.
std::string order_of(const Program& program, AccumulateOrder order, int copies) {
  if (order == AccumulateOrder::Tree) return "tree";
  if (copies > 1) return "of " + std::to_string(copies) + " copies, " + order_of(program, order, 1);
  if (accumulation(program).ascending) return "ascending";
  return "as in plan " + plan_hash(compute_only(program));
}

}  // namespace

std::string optimizer_name(const TrainerOptions& options) {
  return options.custom_optimizer ? "custom" : std::string(name_of(options.optimizer.kind));
}

std::map<std::string, std::string> settings_of(const Program& program,
                                               const TrainerOptions& options,
                                               const LossScaleOptions& loss_scale,
                                               int copies) {
  const OptimizerOptions& optimizer = options.optimizer;
  const LearningRate& rate = options.learning_rate;
  return {
      {"accumulation", order_of(program, options.accumulate_order, copies)},
      {"micro_batches", std::to_string(copies * options.accumulate * program.shape.micro_batches)},
      {"slices", std::to_string(program.shape.slices)},
      {"batch_size", std::to_string(options.batch_size)},
      {"last_batch", std::string(name_of(options.last_batch))},
      {"epochs", std::to_string(options.epochs)},
      {"steps", std::to_string(options.steps)},
      {"max_skipped", std::to_string(options.max_skipped)},
      {"clip_norm", options.clip_norm ? exact_text(*options.clip_norm) : "none"},
      {"frozen", joined(options.frozen, " ")},
      {"parameters", joined(texts_of(options.parameters), " ")},
      {"tied", tied_in(program.shape)},
      {"optimizer.momentum", exact_text(optimizer.momentum)},
      {"optimizer.beta1", exact_text(optimizer.beta1)},
      {"optimizer.beta2", exact_text(optimizer.beta2)},
      {"optimizer.epsilon", exact_text(optimizer.epsilon)},
      {"optimizer.weight_decay", exact_text(optimizer.weight_decay)},
      {"learning_rate.curve", to_string(rate)},
      {"learning_rate.base", exact_text(rate.base)},
      {"learning_rate.warm_up", std::to_string(rate.warm_up)},
      {"learning_rate.total_updates", std::to_string(rate.total_updates)},
      {"loss_scale", to_string(loss_scale)}};
}

}  // namespace millrace
