// Averages over measured timelines, and the replay that predicts stash peaks.
#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <tuple>

#include "millrace/core/error.hpp"
#include "millrace/stages/layer.hpp"
#include "millrace/training/records.hpp"
#include "training/optimizer_shards.hpp"

namespace millrace {
namespace {

std::size_t units_of(const Shape& shape) {
  return static_cast<std::size_t>(shape.micro_batches) * static_cast<std::size_t>(shape.slices);
}

/// The unit of an action, [micro_batch * slices + slice].
std::size_t unit_of(const Shape& shape, const Action& action) {
  return action.micro_batch.index() * static_cast<std::size_t>(shape.slices) + action.slice.index();
}

/// (replica, stage, unit) as one index.
std::size_t unit_index(const Shape& shape, const Action& action) {
  const auto stage =
      action.replica().index() * static_cast<std::size_t>(shape.stages()) + action.stage.index();
  return stage * units_of(shape) + unit_of(shape, action);
}

}  // namespace

double StepUse::bubble() const {
  double busy = 0;
  for (const RankUse& rank : ranks) busy += rank.busy;
  const double all = makespan * static_cast<double>(ranks.size());
  return all > 0 ? std::max(0.0, 1 - busy / all) : 0;
}

StepUse step_use(const Program& program, const Timeline& timeline) {
  StepUse use;
  use.ranks.resize(program.ranks.size());
  double first = std::numeric_limits<double>::infinity();
  double last = 0;
  for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank)
    for (std::size_t i = 0; i < timeline.ranks[rank].size(); ++i) {
      if (!is_compute(program.ranks[rank][i].op)) continue;
      const Interval& interval = timeline.ranks[rank][i];
      use.ranks[rank].busy += interval.end - interval.start;
      first = std::min(first, interval.start);
      last = std::max(last, interval.end);
    }
  use.makespan = last > first ? last - first : 0;
  return use;
}

Profile::Profile(const Program& program)
    : program_(&program),
      of_op_(kOps,
             std::vector<Mean>(static_cast<std::size_t>(program.shape.stages()) *
                               static_cast<std::size_t>(program.shape.slices))),
      busy_(program.ranks.size(), 0.0) {}

void Profile::add(const Timeline& timeline, double after_passes) {
  for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank)
    for (std::size_t i = 0; i < timeline.ranks[rank].size(); ++i) {
      const Action& action = program_->ranks[rank][i];
      if (!is_compute(action.op)) continue;
      const Interval& interval = timeline.ranks[rank][i];
      Mean& mean = of_op_[static_cast<std::size_t>(action.op)]
                         [action.stage.index() * static_cast<std::size_t>(program_->shape.slices) +
                          action.slice.index()];
      mean.sum += interval.end - interval.start;
      ++mean.count;
    }
  const StepUse use = step_use(*program_, timeline);
  makespan_ += use.makespan;
  after_passes_ += std::max(0.0, after_passes);
  for (std::size_t rank = 0; rank < busy_.size(); ++rank) busy_[rank] += use.ranks[rank].busy;
  ++steps_;
}

StepUse Profile::use() const {
  StepUse use;
  const auto steps = static_cast<double>(std::max<std::int64_t>(steps_, 1));
  use.makespan = makespan_ / steps;
  for (const double busy : busy_) use.ranks.push_back({busy / steps});
  return use;
}

std::vector<double> Profile::means(Op op) const {
  const auto& means = of_op_[static_cast<std::size_t>(op)];
  std::vector<double> values;
  if (std::none_of(means.begin(), means.end(), [](const Mean& mean) { return mean.count > 0; }))
    return values;
  for (const Mean& mean : means) values.push_back(mean.value());
  return values;
}

namespace {

bool recomputes(const Program& program, Stage stage) {
  return std::ranges::any_of(program.ranks, [&](const std::vector<Action>& list) {
    return std::ranges::any_of(list, [&](const Action& action) {
      return action.op == Op::Recompute && action.stage == stage;
    });
  });
}

/// What copies of a pipeline add up of a stage, and a tree of sums keeps.
std::size_t gradient_bytes(StageBody& body) {
  std::size_t bytes = 0;
  for (const Parameter* parameter : body.parameters()) bytes += parameter->gradient.bytes();
  return bytes;
}

}  // namespace

Cost Profile::cost(std::span<const HostedStage> stages, const UnitSize& size) const {
  require(steps_ > 0, "a profile needs at least 1 measured step, got 0");
  Cost cost;
  cost.slices = program_->shape.slices;
  const std::size_t pieces = of_op_.front().size();
  cost.forward = means(Op::Forward);
  cost.backward = means(Op::Backward);
  cost.backward_input = means(Op::BackwardInput);
  cost.backward_weight = means(Op::BackwardWeight);
  cost.recompute = means(Op::Recompute);
  cost.after_passes = after_passes_ / static_cast<double>(steps_);
  cost.forward.resize(pieces);
  for (auto* half : {&cost.backward_input, &cost.backward_weight})
    if (half->empty())
      for (const double whole : cost.backward) half->push_back(whole / 2);

  const auto count = static_cast<std::size_t>(program_->shape.stages());
  for (auto* memory : {&cost.memory_forward,
                       &cost.memory_input_peak,
                       &cost.memory_input,
                       &cost.memory_weight,
                       &cost.memory_boundary,
                       &cost.gradient_bytes})
    memory->resize(count);
  for (const HostedStage& hosted : stages) {
    const bool again = recomputes(*program_, hosted.stage);
    const StashBytes kept = hosted.body->stash_bytes(size, true);
    StashBytes bytes = hosted.body->stash_bytes(size, again);
    if (again) bytes.after_forward = bytes.after_recompute;
    const auto of_all_slices = [&](std::size_t of_unit) {
      return static_cast<double>(of_unit) * program_->shape.slices;
    };
    const double forward = of_all_slices(bytes.after_forward);
    const std::size_t i = hosted.stage.index();
    cost.memory_forward[i] = forward;
    cost.memory_input_peak[i] = of_all_slices(bytes.input_peak) - forward;
    cost.memory_input[i] = of_all_slices(bytes.after_input) - forward;
    cost.memory_weight[i] = -of_all_slices(bytes.after_input);
    cost.memory_boundary[i] = of_all_slices(kept.after_forward);
    cost.gradient_bytes[i] = static_cast<double>(gradient_bytes(*hosted.body));
  }
  return cost;
}

namespace {

/// Plays one rank's list and keeps what every unit holds.
class StashReplay {
 public:
  StashReplay(const Program& program,
              std::span<const HostedStage> stages,
              std::span<const UnitSize> sizes)
      : shape_(program.shape), sizes_(sizes) {
    const auto stage_count =
        static_cast<std::size_t>(shape_.stages()) * static_cast<std::size_t>(shape_.replicas());
    bodies_.resize(stage_count);
    held_.resize(stage_count * units_of(shape_));
    recomputed_.resize(held_.size());
    for (const HostedStage& hosted : stages)
      bodies_[hosted.replica.index() * static_cast<std::size_t>(shape_.stages()) +
              hosted.stage.index()] = hosted.body;
    for (const auto& list : program.ranks)
      for (const Action& action : list)
        if (action.op == Op::Recompute) recomputed_[unit_index(shape_, action)] = true;
  }

  std::size_t peak(std::span<const Action> list) {
    total_ = peak_ = 0;
    for (const Action& action : list) play(action);
    return peak_;
  }

 private:
  void play(const Action& action) {
    if (!is_compute(action.op)) return;
    const std::size_t index = unit_index(shape_, action);
    const StageBody* body = bodies_[index / units_of(shape_)];
    if (body == nullptr) return;
    const UnitSize& size = sizes_[unit_of(shape_, action)];
    const StashBytes bytes = body->stash_bytes(size, recomputed_[index]);
    switch (action.op) {
      case Op::Forward:
        return hold(index, bytes.after_forward);
      case Op::Recompute:
        return hold(index, bytes.after_recompute);
      case Op::BackwardInput:
        hold(index, bytes.input_peak);
        return hold(index, bytes.after_input);
      case Op::Backward:
        hold(index, bytes.input_peak);
        return hold(index, 0);
      default:
        return hold(index, 0);
    }
  }

  void hold(std::size_t index, std::size_t bytes) {
    total_ += bytes;
    total_ -= held_[index];
    held_[index] = bytes;
    peak_ = std::max(peak_, total_);
  }

  const Shape& shape_;
  std::span<const UnitSize> sizes_;
  std::vector<const StageBody*> bodies_;
  std::vector<std::size_t> held_;
  std::vector<bool> recomputed_;
  std::size_t total_ = 0;
  std::size_t peak_ = 0;
};

}  // namespace

std::vector<std::size_t> predict_stash_peaks(const Program& program,
                                             std::span<const HostedStage> stages,
                                             std::span<const UnitSize> sizes) {
  require(sizes.size() == units_of(program.shape),
          "one size per unit is needed: " + std::to_string(units_of(program.shape)) + ", got " +
              std::to_string(sizes.size()));
  StashReplay replay(program, stages, sizes);
  std::vector<std::size_t> peaks;
  for (const auto& list : program.ranks) peaks.push_back(replay.peak(list));
  return peaks;
}

std::vector<std::size_t> predict_optimizer_bytes(const Shape& shape,
                                                 std::span<const HostedStage> stages,
                                                 int slots,
                                                 int copies) {
  std::vector<std::vector<const Parameter*>> of_rank(static_cast<std::size_t>(shape.ranks));
  for (const HostedStage& hosted : stages)
    for (const Parameter* parameter : hosted.body->parameters())
      of_rank[shape.rank(hosted.replica, hosted.stage).index()].push_back(parameter);
  std::vector<std::size_t> most;
  for (const auto& parameters : of_rank) {
    std::vector<std::size_t> bytes(static_cast<std::size_t>(copies));
    const auto shares = shares_of(parameters, copies);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const int arrays = slots + (is_narrow(parameters[i]->precision) ? 1 : 0);
      for (std::size_t copy = 0; copy < shares[i].size(); ++copy)
        bytes[copy] += (shares[i][copy].last - shares[i][copy].first) *
                       static_cast<std::size_t>(arrays) * sizeof(float);
    }
    most.push_back(std::ranges::max(bytes));
  }
  return most;
}

}  // namespace millrace
