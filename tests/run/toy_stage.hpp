// A stage body with real float arithmetic that is small enough to read: its weight gradient is a
// sum whose bits depend on the order of the units, its slices carry state both ways, and every pass
// can be made to fail or to dawdle.
//
//   h = x / (1 + |x|),  y = w h + c / 2,  c = sum of x over the earlier slices of the micro-batch
//   last stage: loss = sum (y - t)^2
#pragma once

#include <cmath>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "millrace/core/random.hpp"
#include "millrace/scheduler/plan/program.hpp"
#include "millrace/stages/stage.hpp"

namespace millrace::testing_run {

constexpr std::int64_t kWidth = 3;

/// Called at the start of every pass; may throw or spin.
using Disturbance = std::function<void(Op op, Stage stage, const PassContext& context)>;

class ToyStage final : public StageBody {
 public:
  ToyStage(Stage stage, bool first, bool last) : stage_(stage), first_(first), last_(last) {
    parameter_.name = "layers." + std::to_string(stage.value) + ".weight";
    parameter_.value = Tensor(DType::F32, {kWidth});
    parameter_.gradient = Tensor(DType::F32, {kWidth});
    parameter_.gradient.fill_zero();
    for (std::size_t i = 0; i < kWidth; ++i)
      parameter_.value.as<float>()[i] = static_cast<float>(
          0.7 + 0.6 * random_uniform({.seed = 3, .layer = static_cast<std::uint32_t>(stage.value)},
                                     static_cast<std::uint32_t>(i)));
  }

  Disturbance disturbance;

  void reserve(int micro_batches, int slices) override {
    slices_ = slices;
    units_.resize(static_cast<std::size_t>(micro_batches * slices));
  }

  TensorList forward(const PassContext& context, TensorList inputs) override {
    disturb(Op::Forward, context);
    Kept& unit = at(context);
    Tensor y = context.pool->make(DType::F32, inputs[0].dims());
    compute(context, inputs[0], y);
    if (last_ && context.loss != nullptr) add_loss(context, y);
    if (!context.training) return TensorList(std::move(y));
    keep(context, unit.x, std::move(inputs[0]));
    if (!context.recompute_later) rebuild(context, unit, y);
    unit.here = true;
    return last_ ? TensorList() : TensorList(std::move(y));
  }

  void recompute(const PassContext& context) override {
    disturb(Op::Recompute, context);
    Kept& unit = at(context);
    Tensor y = context.pool->make(DType::F32, unit.x.dims());
    compute(context, unit.x, y);
    if (last_ && context.loss != nullptr) add_loss(context, y);  // must not count twice
    rebuild(context, unit, y);
  }

  TensorList backward_input(const PassContext& context, TensorList output_gradients) override {
    disturb(Op::BackwardInput, context);
    Kept& unit = at(context);
    if (!last_) keep(context, unit.gy, std::move(output_gradients[0]));
    Tensor gx = context.pool->make(DType::F32, unit.x.dims());
    const auto x = unit.x.as<float>();
    const auto gy = unit.gy.as<float>();
    const auto w = parameter_.value.as<float>();
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float a = 1 + std::abs(x[i]);
      gx.as<float>()[i] = gy[i] * w[i % kWidth] / (a * a) + later_gradient(context, i);
    }
    return first_ ? TensorList() : TensorList(std::move(gx));
  }

  void backward_weight(const PassContext& context) override {
    disturb(Op::BackwardWeight, context);
    Kept& unit = at(context);
    const auto h = unit.h.as<float>();
    const auto gy = unit.gy.as<float>();
    const auto gw = parameter_.gradient.as<float>();
    for (std::size_t i = 0; i < h.size(); ++i) gw[i % kWidth] += gy[i] * h[i];
    drop(context, unit.h);
    unit.weighted = true;
    release_micro_batch(context);
  }

  [[nodiscard]] std::vector<Parameter*> parameters() override { return {&parameter_}; }

  [[nodiscard]] std::size_t stashed_units() const override {
    std::size_t count = 0;
    for (const Kept& unit : units_) count += unit.here ? 1 : 0;
    return count;
  }

  void abandon_step() noexcept override {
    for (Kept& unit : units_) unit = Kept();
    parameter_.gradient.fill_zero();
  }

 private:
  struct Kept {
    Tensor x, h, gy;
    bool here = false;
    bool weighted = false;
  };

  void disturb(Op op, const PassContext& context) const {
    if (disturbance) disturbance(op, stage_, context);
  }

  [[nodiscard]] std::size_t index(const PassContext& context, int slice) const {
    return static_cast<std::size_t>(context.micro_batch.value * slices_ + slice);
  }
  Kept& at(const PassContext& context) { return units_[index(context, context.slice.value)]; }

  static void keep(const PassContext& context, Tensor& place, Tensor tensor) {
    context.meter->add(tensor.bytes());
    place = std::move(tensor);
  }

  static void drop(const PassContext& context, Tensor& place) {
    context.meter->remove(place.bytes());
    place = Tensor();
  }

  /// The slices of a micro-batch look at each other's x and gy: they go together, at the last W.
  void release_micro_batch(const PassContext& context) {
    for (int slice = 0; slice < slices_; ++slice)
      if (!units_[index(context, slice)].weighted) return;
    for (int slice = 0; slice < slices_; ++slice) {
      Kept& unit = units_[index(context, slice)];
      drop(context, unit.x);
      drop(context, unit.gy);
      unit = Kept();
    }
  }

  void compute(const PassContext& context, const Tensor& input, Tensor& output) const {
    const auto x = input.as<float>();
    const auto y = output.as<float>();
    const auto w = parameter_.value.as<float>();
    for (std::size_t i = 0; i < x.size(); ++i) {
      float carried = 0;
      for (int slice = 0; context.training && slice < context.slice.value; ++slice)
        carried += units_[index(context, slice)].x.as<float>()[i];
      y[i] = w[i % kWidth] * (x[i] / (1 + std::abs(x[i]))) + 0.5F * carried;
    }
  }

  [[nodiscard]] float later_gradient(const PassContext& context, std::size_t i) const {
    float sum = 0;
    for (int slice = slices_ - 1; slice > context.slice.value; --slice)
      sum += 0.5F * units_[index(context, slice)].gy.as<float>()[i];
    return sum;
  }

  void rebuild(const PassContext& context, Kept& unit, const Tensor& y) const {
    Tensor h = context.pool->make(DType::F32, y.dims());
    const auto x = unit.x.as<float>();
    for (std::size_t i = 0; i < x.size(); ++i) h.as<float>()[i] = x[i] / (1 + std::abs(x[i]));
    keep(context, unit.h, std::move(h));
    if (!last_) return;
    Tensor gy = context.pool->make(DType::F32, y.dims());
    const auto t = (*context.targets)[0].as<float>();
    for (std::size_t i = 0; i < x.size(); ++i)
      gy.as<float>()[i] = static_cast<float>(2 * context.loss_scale) * (y.as<float>()[i] - t[i]);
    keep(context, unit.gy, std::move(gy));
  }

  void add_loss(const PassContext& context, const Tensor& y) const {
    const auto t = (*context.targets)[0].as<float>();
    for (std::size_t i = 0; i < t.size(); ++i) {
      const double difference = double{y.as<float>()[i]} - double{t[i]};
      context.loss->sum += difference * difference;
    }
    context.loss->weight += static_cast<double>(y.rows());
  }

  Stage stage_;
  bool first_;
  bool last_;
  int slices_ = 1;
  Parameter parameter_;
  std::vector<Kept> units_;
};

}  // namespace millrace::testing_run
