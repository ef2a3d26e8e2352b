// Looking at a model without changing it: forward-only passes, for their loss or their outputs.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "millrace/core/error.hpp"
#include "training/agreement.hpp"
#include "training/pass_data.hpp"
#include "training/trainer_state.hpp"

namespace millrace {
namespace {

/// Evaluations carry step numbers that no training step has, so that messages never meet.
constexpr std::uint64_t kEvaluation = std::uint64_t{1} << 63U;

/// The one tensor of a unit's outputs.
const Tensor& only(const TensorList& outputs) {
  require(outputs.size() == 1,
          "a prediction for a data set is one tensor per unit; the last stage gave " +
              std::to_string(outputs.size()));
  return outputs[0];
}

/// What the slices of a micro-batch give, [samples, positions, ...] each, as one tensor.
Tensor joined(std::span<const TensorList> slices) {
  Dims dims = only(slices[0]).dims();
  require(dims.size() >= 2, "a prediction for slices must be [samples, positions, ...]");
  std::int64_t positions = 0;
  for (const TensorList& slice : slices) positions += only(slice).dims()[1];
  *(dims.begin() + 1) = positions;
  Tensor whole(slices[0][0].dtype(), dims);
  const auto rows = static_cast<std::size_t>(dims[0]);
  auto* to = static_cast<std::byte*>(whole.data());
  for (std::size_t row = 0; row < rows; ++row)
    for (const TensorList& slice : slices) {
      const std::size_t bytes = slice[0].bytes() / rows;
      std::memcpy(to, static_cast<const std::byte*>(slice[0].data()) + row * bytes, bytes);
      to += bytes;
    }
  return whole;
}

/// Rows of predictions, one below the other.
class Rows {
 public:
  explicit Rows(std::int64_t total) : total_(total) {}

  /// The outputs of one micro-batch, by slice; none where the last stage lives elsewhere.
  void append(std::span<const TensorList> slices) {
    if (slices[0].empty()) return;
    if (slices.size() > 1) return append(joined(slices));
    append(only(slices[0]));
  }

  [[nodiscard]] Tensor take() { return std::move(all_); }

 private:
  void append(const Tensor& part) {
    make_room(part);
    const std::size_t row = all_.bytes() / static_cast<std::size_t>(total_);
    std::memcpy(static_cast<std::byte*>(all_.data()) + static_cast<std::size_t>(filled_) * row,
                part.data(),
                part.bytes());
    filled_ += part.rows();
  }

  void make_room(const Tensor& part) {
    require(part.dims().size() >= 1 && filled_ + part.rows() <= total_,
            "a prediction must have a row per sample");
    Dims dims = part.dims();
    *dims.begin() = total_;
    if (!all_) all_ = Tensor(part.dtype(), dims);
    require(all_.dims() == dims && all_.dtype() == part.dtype(), [&] {
      return std::string("predictions must be alike for all samples, got rows of ") +
             name_of(all_.dtype()) + " " + to_string(all_.dims()) + " and of " +
             name_of(part.dtype()) + " " + to_string(dims);
    });
  }

  std::int64_t total_;
  std::int64_t filled_ = 0;
  Tensor all_;
};

}  // namespace

StepResult Trainer::State::evaluate(StepData& data, bool compares_batch) {
  require(parts.evaluator != nullptr, "this trainer was made without an evaluator");
  StepSettings settings;
  settings.seed = store.counters().seed;
  settings.step = kEvaluation | evaluations++;
  settings.training = false;
  settings.deadline = options.run.deadline;
  group.begin_step(settings.step);
  StepData& batch = compares_batch ? watched(data, shape.micro_batches) : data;
  StepResult result = parts.evaluator->run(batch, settings);
  std::vector<double> unused(sinks.size());
  agree(result, unused, 1, compares_batch);
  return result;
}

bool Trainer::State::evaluate(const Dataset& data,
                              std::int64_t batch_size,
                              const std::function<void(StepResult)>& use,
                              const Pause& stops) {
  require(batch_size >= 0,
          "the batch size must be at least 0 (as in training), got " + std::to_string(batch_size));
  // By default the micro-batches are those of training: figures have the same bits for any number
  // of data-parallel replicas and passes that have a part of a mini-batch each.
  const int micro = batch_size == 0 ? micro_batches() : shape.micro_batches;
  if (batch_size == 0) batch_size = options.fit.batch_size;
  if (!stops) agree_on_data(group, data, batch_size);  // else fit() has
  Batch batch;
  std::vector<std::int32_t> rows;
  for (std::int64_t first = 0; first < data.size(); first += batch_size) {
    rows.resize(static_cast<std::size_t>(std::min(batch_size, data.size() - first)));
    std::iota(rows.begin(), rows.end(), static_cast<std::int32_t>(first));
    batch.fill(data, rows, micro, shape.slices);
    LossSum loss;
    for (int begin = 0; begin < micro; begin += shape.micro_batches) {
      if (stops && stops()) return false;
      PassData pass(batch, MicroBatch{begin});
      StepResult result = evaluate(pass, false);
      for (const LossSum& unit : result.unit_losses) loss += unit;
      result.loss = begin + shape.micro_batches < micro ? LossSum() : loss;
      use(std::move(result));
    }
  }
  return true;
}

Score Trainer::evaluate(const Dataset& data, std::int64_t batch_size) {
  Score score;
  state_->evaluate(
      data, batch_size, [&](const StepResult& result) { score.add(result.loss, result.samples); });
  return score;
}

Score Trainer::evaluate(StepData& data) {
  Score score;
  const StepResult result = state_->evaluate(data, true);
  score.add(result.loss, result.samples);
  return score;
}

Tensor Trainer::predict(const Dataset& data, std::int64_t batch_size) {
  require(!data.has_documents(), [&] {
    return data.name + " has documents of different lengths, which make no one tensor of " +
           "predictions; give predict a StepData";
  });
  Rows rows(data.size());
  state_->evaluate(data, batch_size, [&](const StepResult& result) {
    const std::span<const TensorList> units(result.outputs);
    const auto slices = static_cast<std::size_t>(state_->shape.slices);
    for (std::size_t first = 0; first < units.size(); first += slices)
      rows.append(units.subspan(first, slices));
  });
  return rows.take();
}

std::vector<TensorList> Trainer::predict(StepData& data) {
  return state_->evaluate(data, false).outputs;
}

}  // namespace millrace
