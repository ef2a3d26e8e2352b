// Batch normalisation: every channel by the statistics of the micro-batch, in evaluation by those
// that training kept.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "millrace/stages/row_layer.hpp"

namespace millrace {

/// When running statistics take up what a micro-batch saw. Both change them at the end of a step
/// that is not skipped and at no other time.
enum class RunningStatistics : std::uint8_t {
  /// Mean and variance of the whole mini-batch, over all micro-batches and copies: one update.
  Deferred,
  /// Those of every micro-batch, one update after the other. Its stage can have no copies.
  Immediate
};

/// "deferred", "immediate". The second throws InvalidArgument that lists the known names.
[[nodiscard]] const char* name_of(RunningStatistics statistics);
[[nodiscard]] RunningStatistics running_statistics(std::string_view name);

/// y = h g + b with h = (x - mean) / sqrt(var + epsilon) per column; x, y [rows, columns], weight g
/// and bias b [columns] (initialised to 1 and 0, not decayed). Ioffe and Szegedy, "Batch
/// Normalization", arXiv 1502.03167, algorithm 1. Mean and var (divided by the number of rows) are
/// those of the unit at hand, a micro-batch, whatever else the mini-batch has: its results depend
/// on the number of micro-batches. In evaluation they are the running ones.
///
/// Running statistics r <- (1 - momentum) r + momentum s, with s the mean or the variance (divided
/// by rows - 1, if there are two rows) of what RunningStatistics says. Kept in parameters
/// "running_mean" and "running_var" [columns], and "batches_tracked" [1], the number of updates.
/// Passes add in W: a unit counts once with recompute too. Deferred: torchgpipe's, Kim et al.,
/// arXiv 2004.09910, section 3.2.2; sums are of distances from the running mean, so that little is
/// lost in f32.
///
/// F keeps h and mean and var [2, columns]. With dh = dy g and s = 1 / sqrt(var + epsilon):
/// I: dx = s (dh - mean(dh) - h mean(dh h)) over the rows, keeps dy; W: dg += column sums of dy h,
/// db += column sums of dy. Sums are in double and in row order.
/// Thread-safety: externally synchronised.
class BatchNorm final : public RowLayer {
 public:
  struct Settings {
    std::int64_t columns = 0;
    double epsilon = 1e-5;
    double momentum = 0.1;
    RunningStatistics statistics = RunningStatistics::Deferred;
    DType dtype = DType::F32;
    std::uint32_t layer = 0;  ///< global number: names the parameters
  };

  /// Throws InvalidArgument when columns < 1, epsilon <= 0, momentum is not above 0 and at most 1,
  /// or the dtype is neither f32 nor f64.
  explicit BatchNorm(const Settings& settings);

  Tensor forward_rows(const PassContext& context, Tensor input, Stash& stash) override;
  Tensor backward_rows(const PassContext& context,
                       Tensor output_gradient,
                       Stash& stash,
                       bool wanted) override;
  void backward_weight(const PassContext& context, Stash& stash) override;

  [[nodiscard]] std::vector<Parameter*> parameters() override;
  void update_statistics() override;
  void initialize(std::uint64_t seed) override;
  [[nodiscard]] DType dtype() const override { return settings_.dtype; }
  [[nodiscard]] std::int64_t input_columns() const override { return settings_.columns; }
  [[nodiscard]] std::int64_t output_columns() const override { return settings_.columns; }
  [[nodiscard]] std::size_t bytes_after_forward(std::int64_t rows) const override;
  [[nodiscard]] std::size_t bytes_after_input(std::int64_t rows) const override;
  [[nodiscard]] std::string describe() const override;

 private:
  template <class T>
  [[nodiscard]] Tensor moments_of(const PassContext& context, const Tensor& input) const;
  template <class T>
  void note(const T* moments, std::int64_t rows);
  template <class T>
  void take_up();

  Settings settings_;
  Parameter weight_;
  Parameter bias_;
  Parameter mean_;
  Parameter variance_;
  Parameter batches_;  // its gradient: rows seen (Deferred), or units seen (Immediate)
};

}  // namespace millrace
