// Types of tensors as text and with sizes; stages made of functions.
#include "millrace/stages/stage.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "millrace/core/error.hpp"

namespace millrace {
namespace {

std::string word_of(std::int64_t extent) {
  if (extent == kSamples) return "samples";
  return extent == kPositions ? "positions" : std::to_string(extent);
}

}  // namespace

TensorType sized(TensorType type, const UnitSize& size) {
  for (std::int64_t& extent : type.dims) {
    if (extent == kSamples) extent = size.samples;
    if (extent == kPositions) extent = size.positions;
  }
  return type;
}

std::size_t bytes_of(const TensorType& type, const UnitSize& size) {
  return bytes_of(type.dtype, sized(type, size).dims);
}

std::string to_string(const TensorType& type) {
  std::string text = std::string(name_of(type.dtype)) + " [";
  for (const std::int64_t extent : type.dims)
    text += (text.back() == '[' ? "" : ", ") + word_of(extent);
  return text + "]";
}

namespace {

/// A unit's tensors, counted as stash between two passes and not inside them.
class CountedList {
 public:
  [[nodiscard]] bool here() const { return here_; }

  void keep(const PassContext& context, TensorList list) {
    list_ = std::move(list);
    here_ = true;
    if (context.meter != nullptr) context.meter->add(list_.bytes());
  }

  TensorList take(const PassContext& context, const char* pass) {
    require(here_, [&] {
      return std::string(pass) + " of micro-batch " + std::to_string(context.micro_batch.value) +
             ", slice " + std::to_string(context.slice.value) +
             " comes out of turn: nothing is kept for it";
    });
    if (context.meter != nullptr) context.meter->remove(list_.bytes());
    here_ = false;
    return std::move(list_);
  }

  void drop() noexcept {
    list_.clear();
    here_ = false;
  }

 private:
  TensorList list_;
  bool here_ = false;
};

TensorList copies_of(const PassContext& context, const TensorList& list) {
  TensorList copies;
  for (std::size_t i = 0; i < list.size(); ++i) {
    Tensor copy = list[i] ? context.make(list[i].dtype(), list[i].dims()) : Tensor();
    if (list[i].bytes() != 0) std::memcpy(copy.data(), list[i].data(), list[i].bytes());
    copies.push_back(std::move(copy));
  }
  return copies;
}

class FunctionStage final : public StageBody {
 public:
  FunctionStage(StageFunctions functions, std::vector<Parameter*> parameters)
      : functions_(std::move(functions)), parameters_(std::move(parameters)) {
    require(functions_.forward != nullptr, "a stage needs a function for its forward");
    require(functions_.backward_input != nullptr, "a stage needs a function for its backward");
    reserve(1, 1);
  }

  void reserve(int micro_batches, int slices) override {
    require(micro_batches >= 1 && slices >= 1,
            "a stage must be reserved for at least 1 micro-batch of 1 slice");
    slices_ = slices;
    units_ = std::vector<CountedList>(static_cast<std::size_t>(micro_batches) *
                                      static_cast<std::size_t>(slices));
  }

  TensorList forward(const PassContext& context, TensorList inputs) override {
    TensorList kept;
    if (!context.training) return functions_.forward(context, std::move(inputs), kept);
    if (!context.recompute_later) {
      TensorList outputs = functions_.forward(context, std::move(inputs), kept);
      at(context).keep(context, std::move(kept));
      return outputs;
    }
    PassContext whole = context;
    whole.recompute_later = false;
    at(context).keep(context, copies_of(context, inputs));
    return functions_.forward(whole, std::move(inputs), kept);
  }

  void recompute(const PassContext& context) override {
    TensorList kept;
    (void)functions_.forward(context, at(context).take(context, "recompute"), kept);
    at(context).keep(context, std::move(kept));
  }

  TensorList backward_input(const PassContext& context, TensorList gradients) override {
    TensorList kept = at(context).take(context, "backward-input");
    TensorList given = functions_.backward_input(context, std::move(gradients), kept);
    if (splits_backward()) at(context).keep(context, std::move(kept));
    return given;
  }

  void backward_weight(const PassContext& context) override {
    if (!splits_backward()) return;
    TensorList kept = at(context).take(context, "backward-weight");
    functions_.backward_weight(context, kept);
  }

  [[nodiscard]] bool splits_backward() const override {
    return functions_.backward_weight != nullptr;
  }

  [[nodiscard]] std::vector<Parameter*> parameters() override { return parameters_; }

  [[nodiscard]] std::size_t stashed_units() const override {
    return static_cast<std::size_t>(
        std::ranges::count_if(units_, [](const CountedList& unit) { return unit.here(); }));
  }

  void abandon_step() noexcept override {
    for (CountedList& unit : units_) unit.drop();
  }

 private:
  CountedList& at(const PassContext& context) {
    const auto unit =
        static_cast<std::size_t>(context.micro_batch.value * slices_ + context.slice.value);
    require(unit < units_.size() && context.slice.value < slices_, [&] {
      return "micro-batch " + std::to_string(context.micro_batch.value) + ", slice " +
             std::to_string(context.slice.value) + ": the stage is reserved for " +
             std::to_string(units_.size()) + " units of " + std::to_string(slices_) +
             " slices per micro-batch";
    });
    return units_[unit];
  }

  StageFunctions functions_;
  std::vector<Parameter*> parameters_;
  int slices_ = 1;
  std::vector<CountedList> units_;
};

}  // namespace

std::unique_ptr<StageBody> make_stage(StageFunctions functions,
                                      std::vector<Parameter*> parameters) {
  return std::make_unique<FunctionStage>(std::move(functions), std::move(parameters));
}

}  // namespace millrace
