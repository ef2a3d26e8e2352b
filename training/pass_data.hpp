// A mini-batch seen pass by pass: the micro-batches of one run of the program, numbered from 0, as
// executors want them. Nothing is copied.
#pragma once

#include <cstdint>

#include "millrace/scheduler/run/executor.hpp"

namespace millrace {

/// The micro-batches of `whole` from `first` on. Samples keep their places in the mini-batch, so
/// that random numbers do not depend on the passes. Thread-safety: as `whole`, which must outlive
/// this.
class PassData final : public StepData {
 public:
  PassData(StepData& whole, MicroBatch first) : whole_(whole), first_(first) {}

  TensorList inputs(const Unit& unit) override { return whole_.inputs(in_whole(unit)); }
  TensorList targets(const Unit& unit) override { return whole_.targets(in_whole(unit)); }
  TensorList targets_of(const Unit& unit, Stage sink) override {
    return whole_.targets_of(in_whole(unit), sink);
  }
  [[nodiscard]] std::int64_t first_sample(const Unit& unit) const override {
    return whole_.first_sample(in_whole(unit));
  }
  [[nodiscard]] std::int64_t first_position(const Unit& unit) const override {
    return whole_.first_position(in_whole(unit));
  }
  [[nodiscard]] bool is_empty(const Unit& unit) const override {
    return whole_.is_empty(in_whole(unit));
  }

 private:
  [[nodiscard]] Unit in_whole(const Unit& unit) const {
    return {MicroBatch{first_.value + unit.micro_batch.value}, unit.slice};
  }

  StepData& whole_;
  MicroBatch first_;
};

}  // namespace millrace
