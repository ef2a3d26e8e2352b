// Whether all processes train on the same mini-batch. Each process is given all of it and uses a
// part, so without a comparison a mini-batch that differs would train garbage without a word.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "millrace/scheduler/run/executor.hpp"
#include "millrace/transport/process_group.hpp"

namespace millrace {

/// A mini-batch that hashes what it gives: element type, shape and all bytes of every tensor
/// (xxh3-64). Thread-safety: the StepData calls as those of the mini-batch; the others externally
/// synchronised.
class BatchDigest final : public StepData {
 public:
  /// Sums over processes that compare one number: see put_equality.
  static constexpr std::size_t kValues = 18;

  /// Begins with a mini-batch of so many units. Keeps its memory.
  void begin(StepData& batch, int micro_batches, int slices);

  TensorList inputs(const Unit& unit) override { return seen(inputs_, unit, batch_->inputs(unit)); }
  TensorList targets(const Unit& unit) override {
    return seen(targets_, unit, batch_->targets(unit));
  }
  TensorList targets_of(const Unit& unit, Stage sink) override {
    return batch_->targets_of(unit, sink);
  }
  [[nodiscard]] std::int64_t first_sample(const Unit& unit) const override {
    return batch_->first_sample(unit);
  }
  [[nodiscard]] std::int64_t first_position(const Unit& unit) const override {
    return batch_->first_position(unit);
  }
  [[nodiscard]] bool is_empty(const Unit& unit) const override { return batch_->is_empty(unit); }
  void predicted(const Unit& unit, const TensorList& outputs) override {
    batch_->predicted(unit, outputs);
  }

  /// Takes and hashes the units that no pass of this process has taken. Where that throws, the
  /// others of the group do not wait for this process.
  void take_rest(ProcessGroup& group);

  /// Of all units in order; none unless this process has the bytes of each.
  [[nodiscard]] std::optional<std::uint64_t> of_inputs() const { return digest(inputs_); }
  [[nodiscard]] std::optional<std::uint64_t> of_targets() const { return digest(targets_); }

  /// What this process adds to the sums, and whether the sums say that all processes with a digest
  /// have the same one.
  void put(std::span<double, kValues> values) const;
  [[nodiscard]] static bool is_same(std::span<const double, kValues> sums);

 private:
  enum class Found : std::uint8_t { NotTaken, Bytes, Nothing, NoBytes };
  struct UnitDigest {
    std::uint64_t hash = 0;
    Found found = Found::NotTaken;
  };
  using Digests = std::vector<UnitDigest>;

  [[nodiscard]] static UnitDigest digest_of(const TensorList& tensors);
  [[nodiscard]] static std::optional<std::uint64_t> digest(const Digests& units);
  [[nodiscard]] TensorList seen(Digests& digests, const Unit& unit, TensorList tensors) const;

  StepData* batch_ = nullptr;
  std::size_t slices_ = 1;
  Digests inputs_, targets_;  // [micro_batch * slices + slice]
};

}  // namespace millrace
