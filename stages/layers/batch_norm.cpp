// Batch normalisation: every channel by the statistics of the micro-batch, in evaluation by those
// that training kept.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fmt/format.h>
#include <string>
#include <utility>

#include "core/names.hpp"
#include "millrace/stages/layer.hpp"
#include "stages/kernels/precision.hpp"
#include "stages/kernels/reductions.hpp"
#include "stages/layers/kinds.hpp"
#include "stages/layers/parameters.hpp"

namespace millrace {
namespace {

/// When running statistics take up what a micro-batch saw. Both change them at the end of a step
/// that is not skipped and at no other time.
enum class RunningStatistics : std::uint8_t {
  /// Mean and variance of the whole mini-batch, over all micro-batches and copies: one update.
  Deferred,
  /// Those of every micro-batch, one update after the other. Its stage can have no copies.
  Immediate
};

// Places in the stash: all three stay from where they come to be to W.
constexpr std::size_t kNormalised = 0;
constexpr std::size_t kMoments = 1;
constexpr std::size_t kGradient = 2;

template <class T>
T scale_of(T variance, double epsilon) {
  return static_cast<T>(1 / std::sqrt(static_cast<double>(variance) + epsilon));
}

/// Mean and variance of the columns [2, columns], of at least one row.
template <class T>
void measure(const PassContext& context, const Tensor& input, Tensor& moments) {
  Tensor exact = context.make(DType::F64, moments.dims());
  double* means = values<double>(exact);
  const std::int64_t columns = input.columns();
  column_moments(values<T>(input), input.rows(), columns, means, means + columns);
  std::transform(means, means + 2 * columns, values<T>(moments), [](double moment) {
    return static_cast<T>(moment);
  });
}

/// h = (x - mean) / sqrt(var + epsilon)
template <class T>
void normalise(const Tensor& input, const T* scales, const T* means, T* h) {
  const std::int64_t columns = input.columns();
  const T* x = values<T>(input);
  for (std::int64_t i = 0; i < input.rows(); ++i)
    for (std::int64_t j = 0; j < columns; ++j)
      h[i * columns + j] = (x[i * columns + j] - means[j]) * scales[j];
}

/// y = h g + b; y and h may be one memory.
template <class T>
void scale_and_shift(const T* h, const T* weight, const T* bias, Tensor& output) {
  const std::int64_t columns = output.columns();
  T* y = values<T>(output);
  for (std::int64_t i = 0; i < output.rows(); ++i)
    for (std::int64_t j = 0; j < columns; ++j)
      y[i * columns + j] = h[i * columns + j] * weight[j] + bias[j];
}

/// Column sums of dy, and after them of dy h: f64 [2, columns].
template <class T>
Tensor gradient_sums(const PassContext& context, const Tensor& gradient, const Tensor& normalised) {
  const std::int64_t columns = gradient.dims()[1];
  const T* dy = values<T>(gradient);
  const T* h = values<T>(normalised);
  Tensor sums = context.make(DType::F64, {2, columns});
  double* plain = values<double>(sums);
  column_sums(gradient.rows(), columns, plain, [&](auto i, auto j) { return dy[i * columns + j]; });
  column_sums(gradient.rows(), columns, plain + columns, [&](auto i, auto j) {
    return static_cast<double>(dy[i * columns + j]) * static_cast<double>(h[i * columns + j]);
  });
  return sums;
}

/// dx = (dy - plain - h along) factor, a number of each for every column.
template <class T>
void input_gradient(const Tensor& gradient,
                    const Tensor& normalised,
                    const T* numbers,
                    Tensor& result) {
  const std::int64_t columns = gradient.columns();
  const T* plain = numbers;
  const T* along = plain + columns;
  const T* factor = along + columns;
  const T* dy = values<T>(gradient);
  const T* h = values<T>(normalised);
  T* dx = values<T>(result);
  for (std::int64_t i = 0; i < gradient.rows(); ++i)
    for (std::int64_t j = 0; j < columns; ++j) {
      const std::int64_t at = i * columns + j;
      dx[at] = (dy[at] - plain[j] - h[at] * along[j]) * factor[j];
    }
}

/// n / (n - 1) for two rows and more.
double unbiased(double rows) {
  return rows > 1 ? rows / (rows - 1) : 1.0;
}

constexpr Names<RunningStatistics, 2> kStatistics = {
    "running statistics",
    {{{"deferred", RunningStatistics::Deferred}, {"immediate", RunningStatistics::Immediate}}}};

/// y = h g + b with h = (x - mean) / sqrt(var + epsilon) per column; x, y [rows, columns], weight g
/// and bias b [columns] (initialised to 1 and 0, not decayed). Ioffe and Szegedy, "Batch
/// Normalization", arXiv 1502.03167, algorithm 1. Mean and var (divided by the number of rows) are
/// those of the current unit, a micro-batch: its results depend
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
  /// Throws InvalidArgument when columns < 1, epsilon <= 0, momentum is not above 0 and at most 1,
  /// or the dtype is neither f32 nor f64.
  BatchNorm(const LayerSettings& settings,
            std::span<const TensorType> inputs,
            const LayerPlace& place)
      : RowLayer(place, {inputs[0].columns()}, {inputs[0].columns()}),
        epsilon_(settings.number("epsilon", 1e-5)),
        momentum_(settings.number("momentum", 0.1)),
        statistics_(kStatistics.value(settings.word("statistics", "deferred"))) {
    require_float(dtype(), describe());
    require(input_columns() >= 1, describe() + ": a norm needs at least 1 column");
    require(epsilon_ > 0, describe() + ": epsilon must be above 0");
    require(
        momentum_ > 0 && momentum_ <= 1,
        describe() + ": momentum must be above 0 and at most 1, got " + std::to_string(momentum_));
    weight_ = parameter_of(number(), "weight", false);
    bias_ = parameter_of(number(), "bias", false);
    mean_ = parameter_of(number(), "running_mean", false);
    variance_ = parameter_of(number(), "running_var", false);
    batches_ = parameter_of(number(), "batches_tracked", false);
    for (Parameter* statistic : {&mean_, &variance_, &batches_})
      statistic->role = statistics_ == RunningStatistics::Deferred
                            ? ParameterRole::Statistic
                            : ParameterRole::StatisticInOrder;
  }

  Tensor forward_rows(const PassContext& context, Tensor input, Stash& stash) override {
    const std::int64_t columns = input_columns();
    Tensor output = context.make(dtype(), input.dims());
    Tensor scales = context.make(dtype(), {columns});
    Tensor normalised;
    if (context.training) normalised = context.make(dtype(), input.dims());
    Tensor moments;
    with_precision(dtype(), [&]<class T>(T) {
      moments = moments_of<T>(context, input);
      const T* means = values<T>(moments);
      for (std::int64_t j = 0; j < columns; ++j)
        values<T>(scales)[j] = scale_of(means[columns + j], epsilon_);
      T* h = values<T>(context.training ? normalised : output);
      normalise<T>(input, values<T>(scales), means, h);
      scale_and_shift<T>(h, values<T>(weight_.value), values<T>(bias_.value), output);
    });
    if (!context.training) return output;
    stash.keep(context, std::move(normalised));
    stash.keep(context, std::move(moments));
    return output;
  }
  Tensor backward_rows(const PassContext& context,
                       Tensor output_gradient,
                       Stash& stash,
                       bool wanted) override {
    Tensor result;
    if (wanted) {
      const std::int64_t columns = input_columns();
      const auto rows = static_cast<double>(std::max<std::int64_t>(output_gradient.rows(), 1));
      const Tensor normalised = stash.read(context, kNormalised);
      const Tensor moments = stash.read(context, kMoments);
      Tensor numbers = context.make(dtype(), {3, columns});
      result = context.make(dtype(), output_gradient.dims());
      with_precision(dtype(), [&]<class T>(T) {
        const Tensor sums = gradient_sums<T>(context, output_gradient, normalised);
        const T* variances = values<T>(moments) + columns;
        T* number = values<T>(numbers);
        for (std::int64_t j = 0; j < 2 * columns; ++j)
          number[j] = static_cast<T>(values<double>(sums)[j] / rows);
        for (std::int64_t j = 0; j < columns; ++j)
          number[2 * columns + j] = values<T>(weight_.value)[j] * scale_of(variances[j], epsilon_);
        input_gradient<T>(output_gradient, normalised, number, result);
      });
    }
    stash.keep(context, std::move(output_gradient));
    return result;
  }
  void backward_weight(const PassContext& context, Stash& stash) override {
    const Tensor normalised = stash.read(context, kNormalised);
    const Tensor moments = stash.read(context, kMoments);
    const Tensor gradient = stash.read(context, kGradient);
    const std::int64_t columns = input_columns();
    with_precision(dtype(), [&]<class T>(T) {
      const Tensor sums = gradient_sums<T>(context, gradient, normalised);
      const double* plain = values<double>(sums);
      for (std::int64_t j = 0; j < columns; ++j) {
        values<T>(bias_.gradient)[j] += static_cast<T>(plain[j]);
        values<T>(weight_.gradient)[j] += static_cast<T>(plain[columns + j]);
      }
      if (gradient.rows() > 0) note(values<T>(moments), gradient.rows());
    });
    stash.clear(context);
  }

  [[nodiscard]] std::vector<Parameter*> parameters() override {
    return {&weight_, &bias_, &mean_, &variance_, &batches_};
  }
  void update_statistics() override {
    if (mean_.frozen || variance_.frozen) return;
    with_precision(dtype(), [&](auto zero) { take_up<decltype(zero)>(); });
  }
  void initialize(std::uint64_t) override {
    for (Parameter* parameter : {&weight_, &bias_, &mean_, &variance_})
      allocate(*parameter, dtype(), {input_columns()});
    allocate(batches_, dtype(), {1});
    with_precision(dtype(), [&]<class T>(T) {
      std::ranges::fill(weight_.value.as<T>(), T(1));
      std::ranges::fill(variance_.value.as<T>(), T(1));
    });
  }
  [[nodiscard]] std::size_t bytes_after_forward(std::int64_t rows) const override {
    return kept_bytes((rows + 2) * input_columns());
  }
  [[nodiscard]] std::size_t bytes_after_input(std::int64_t rows) const override {
    return kept_bytes((2 * rows + 2) * input_columns());
  }
  [[nodiscard]] std::string describe() const override {
    return fmt::format("layers.{}: batch norm of {}", number(), input_columns());
  }

 private:
  /// What the unit is normalised by: its own mean and variance, or the running ones.
  template <class T>
  [[nodiscard]] Tensor moments_of(const PassContext& context, const Tensor& input) const {
    const std::int64_t columns = input_columns();
    Tensor moments = context.make(dtype(), {2, columns});
    if (context.training && input.rows() > 0) {
      measure<T>(context, input, moments);
      return moments;
    }
    std::copy_n(values<T>(mean_.value), columns, values<T>(moments));
    std::copy_n(values<T>(variance_.value), columns, values<T>(moments) + columns);
    return moments;
  }
  /// Adds what a unit saw to the sums of the step: distances from the running mean times rows, or
  /// an average in which the last unit weighs most.
  template <class T>
  void note(const T* moments, std::int64_t rows) {
    const bool deferred = statistics_ == RunningStatistics::Deferred;
    const auto count = static_cast<double>(rows);
    const double weight = deferred ? count : momentum_;
    const double kept = deferred ? 1.0 : 1 - momentum_;
    const std::int64_t columns = input_columns();
    for (std::int64_t j = 0; j < columns; ++j) {
      auto mean = static_cast<double>(moments[j]);
      auto variance = static_cast<double>(moments[columns + j]);
      if (deferred) {
        mean -= static_cast<double>(values<T>(mean_.value)[j]);
        variance += mean * mean;
      } else {
        variance *= unbiased(count);
      }
      T& mean_sum = values<T>(mean_.gradient)[j];
      T& variance_sum = values<T>(variance_.gradient)[j];
      mean_sum = static_cast<T>(kept * static_cast<double>(mean_sum) + weight * mean);
      variance_sum = static_cast<T>(kept * static_cast<double>(variance_sum) + weight * variance);
    }
    *values<T>(batches_.gradient) += deferred ? static_cast<T>(rows) : T(1);
  }
  /// The running statistics from the sums of the step.
  template <class T>
  void take_up() {
    const bool deferred = statistics_ == RunningStatistics::Deferred;
    const auto seen = static_cast<double>(*values<T>(batches_.gradient));
    if (!(seen > 0)) return;
    const double kept = std::pow(1 - momentum_, deferred ? 1.0 : seen);
    for (std::int64_t j = 0; j < input_columns(); ++j) {
      double mean = static_cast<double>(values<T>(mean_.gradient)[j]);
      double variance = static_cast<double>(values<T>(variance_.gradient)[j]);
      T& running_mean = values<T>(mean_.value)[j];
      T& running_variance = values<T>(variance_.value)[j];
      if (deferred) {
        mean /= seen;
        variance = std::max(variance / seen - mean * mean, 0.0) * unbiased(seen);
        mean = momentum_ * (mean + static_cast<double>(running_mean));
        variance *= momentum_;
      }
      running_mean = static_cast<T>(kept * static_cast<double>(running_mean) + mean);
      running_variance = static_cast<T>(kept * static_cast<double>(running_variance) + variance);
    }
    *values<T>(batches_.value) += deferred ? T(1) : static_cast<T>(seen);
  }

  double epsilon_;
  double momentum_;
  RunningStatistics statistics_;
  Parameter weight_;
  Parameter bias_;
  Parameter mean_;
  Parameter variance_;
  Parameter batches_;  // its gradient: rows seen (Deferred), or units seen (Immediate)
};

}  // namespace

LayerKind batch_norm_kind() {
  return kind_of<BatchNorm>("batch_norm", {"epsilon", "momentum", "statistics"});
}

}  // namespace millrace
