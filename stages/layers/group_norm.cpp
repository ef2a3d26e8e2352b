// Group normalisation over the pixels of groups of channels.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fmt/format.h>
#include <string>
#include <utility>

#include "millrace/stages/layer.hpp"
#include "stages/kernels/precision.hpp"
#include "stages/kernels/reductions.hpp"
#include "stages/layers/check.hpp"
#include "stages/layers/kinds.hpp"
#include "stages/layers/parameters.hpp"

namespace millrace {
namespace {

// Places in the stash: the normalised values stay from F to W, the scales from F to I, dy from I to
// W.
constexpr std::size_t kNormalisedGroups = 0;
constexpr std::size_t kScales = 1;

/// What the passes over one sample know of it.
struct Sample {
  std::int64_t positions = 0;
  std::int64_t channels = 0;
  std::int64_t groups = 0;

  [[nodiscard]] std::int64_t in_group() const { return channels / groups; }
  [[nodiscard]] std::int64_t elements() const { return positions * channels; }
};

/// The mean of a number per channel over the channels of a group.
double mean_of_group(const Sample& sample, std::int64_t group, const double* of_channel) {
  double sum = 0;
  for (std::int64_t c = 0; c < sample.in_group(); ++c)
    sum += of_channel[group * sample.in_group() + c];
  return sum / static_cast<double>(sample.in_group());
}

/// h = (x - mean) scale in every group; scales[group] = 1 / sqrt(var + epsilon). `moments` has room
/// for two numbers a channel.
template <class T>
void normalise(const Sample& sample, const T* x, double epsilon, double* moments, T* h, T* scales) {
  double* means = moments;
  double* variances = moments + sample.channels;
  column_moments(x, sample.positions, sample.channels, means, variances);
  for (std::int64_t group = 0; group < sample.groups; ++group) {
    const double mean = mean_of_group(sample, group, means);
    const std::int64_t first = group * sample.in_group();
    for (std::int64_t c = first; c < first + sample.in_group(); ++c)
      variances[c] += (means[c] - mean) * (means[c] - mean);
    scales[group] =
        static_cast<T>(1 / std::sqrt(mean_of_group(sample, group, variances) + epsilon));
    const T middle = static_cast<T>(mean);
    for (std::int64_t i = 0; i < sample.positions; ++i)
      for (std::int64_t c = first; c < first + sample.in_group(); ++c)
        h[i * sample.channels + c] = (x[i * sample.channels + c] - middle) * scales[group];
  }
}

/// dx of one sample; `sums` has room for two numbers a channel.
template <class T>
void sample_gradient(const Sample& sample,
                     const T* dy,
                     const T* h,
                     const T* weight,
                     const T* scales,
                     double* sums,
                     T* dx) {
  const std::int64_t channels = sample.channels;
  double* plain = sums;
  double* along = sums + channels;
  column_sums(sample.positions, channels, plain, [&](auto i, auto c) {
    return dy[i * channels + c] * weight[c];
  });
  column_sums(sample.positions, channels, along, [&](auto i, auto c) {
    return dy[i * channels + c] * weight[c] * h[i * channels + c];
  });
  const auto positions = static_cast<double>(sample.positions);
  for (std::int64_t group = 0; group < sample.groups; ++group) {
    const T mean = static_cast<T>(mean_of_group(sample, group, plain) / positions);
    const T slope = static_cast<T>(mean_of_group(sample, group, along) / positions);
    const std::int64_t first = group * sample.in_group();
    for (std::int64_t i = 0; i < sample.positions; ++i)
      for (std::int64_t c = first; c < first + sample.in_group(); ++c) {
        const std::int64_t at = i * channels + c;
        dx[at] = (dy[at] * weight[c] - mean - h[at] * slope) * scales[group];
      }
  }
}

/// y = h g + b with h = (x - mean) / sqrt(var + epsilon) per sample and group of channels; x
/// [samples, positions..., channels], channels last, weight g and bias b [channels] (initialised to
/// 1 and 0, not decayed). Mean and var (divided by the number of values) are over all positions and
/// the channels / groups channels of a group. Wu and He, "Group Normalization", arXiv 1803.08494,
/// equations 1, 2 and 7.
///
/// F keeps h and 1/sqrt(var + epsilon) [samples, groups]. With dh = dy g:
/// I: dx = (dh - mean(dh) - h mean(dh h)) / sqrt(var + epsilon), keeps h and dy instead;
/// W: dg += sums of dy h, db += sums of dy. Sums over positions are in double and in their order.
/// Thread-safety: externally synchronised.
class GroupNorm final : public RowLayer {
 public:
  /// Throws InvalidArgument when an extent is below 1 or not known before there are data, groups do
  /// not divide the channels, epsilon <= 0 or the dtype is neither f32 nor f64.
  GroupNorm(const LayerSettings& settings,
            std::span<const TensorType> inputs,
            const LayerPlace& place)
      : RowLayer(place,
                 extents_of(inputs[0], "samples with channels"),
                 extents_of(inputs[0], "samples with channels")),
        channels_(inputs[0].columns()),
        groups_(settings.integer("groups")),
        epsilon_(settings.number("epsilon", 1e-5)),
        weight_(parameter_of(number(), "weight", false)),
        bias_(parameter_of(number(), "bias", false)) {
    const std::string who = "layers." + std::to_string(number()) + ": group norm";
    require_float(dtype(), who);
    require(all_known(input_extents()),
            who + ": the extents of a sample must be known and at least 1");
    require(groups_ >= 1 && channels_ % groups_ == 0, [&] {
      return who + ": groups must divide the " + std::to_string(channels_) + " channels, got " +
             std::to_string(groups_);
    });
    require(epsilon_ > 0, who + ": epsilon must be above 0");
  }

  Tensor forward_rows(const PassContext& context, Tensor input, Stash& stash) override {
    const Sample sample = this->sample();
    Tensor output = context.make(dtype(), input.dims());
    Tensor normalised = context.make(dtype(), input.dims());
    Tensor scales = context.make(dtype(), {input.rows(), sample.groups});
    Tensor moments = context.make(DType::F64, {2, sample.channels});
    with_precision(dtype(), [&]<class T>(T) {
      const T* weight = values<T>(std::as_const(weight_.value));
      const T* bias = values<T>(std::as_const(bias_.value));
      for (std::int64_t n = 0; n < input.rows(); ++n) {
        T* h = values<T>(normalised) + n * sample.elements();
        normalise(sample,
                  values<T>(std::as_const(input)) + n * sample.elements(),
                  epsilon_,
                  values<double>(moments),
                  h,
                  values<T>(scales) + n * sample.groups);
        T* y = values<T>(output) + n * sample.elements();
        for (std::int64_t i = 0; i < sample.positions; ++i, h += sample.channels)
          for (std::int64_t c = 0; c < sample.channels; ++c) *y++ = h[c] * weight[c] + bias[c];
      }
    });
    if (!context.training) return output;
    stash.keep(context, std::move(normalised));
    stash.keep(context, std::move(scales));
    return output;
  }
  Tensor backward_rows(const PassContext& context,
                       Tensor output_gradient,
                       Stash& stash,
                       bool wanted) override {
    const Tensor scales = stash.take(context, kScales);
    Tensor input_gradient;
    if (wanted) {
      const Sample sample = this->sample();
      const Tensor normalised = stash.read(context, kNormalisedGroups);
      input_gradient = context.make(dtype(), output_gradient.dims());
      Tensor sums = context.make(DType::F64, {2, sample.channels});
      with_precision(dtype(), [&]<class T>(T) {
        for (std::int64_t n = 0; n < output_gradient.rows(); ++n)
          sample_gradient(sample,
                          values<T>(std::as_const(output_gradient)) + n * sample.elements(),
                          values<T>(normalised) + n * sample.elements(),
                          values<T>(std::as_const(weight_.value)),
                          values<T>(scales) + n * sample.groups,
                          values<double>(sums),
                          values<T>(input_gradient) + n * sample.elements());
      });
    }
    stash.keep(context, std::move(output_gradient));
    return input_gradient;
  }
  void backward_weight(const PassContext& context, Stash& stash) override {
    const Tensor normalised = stash.read(context, kNormalisedGroups);
    const Tensor gradient = stash.read(context, stash.size() - 1);
    const std::int64_t width = channels_;
    const std::int64_t positions = gradient.elements() / width;
    Tensor sums = context.make(DType::F64, {width});
    with_precision(dtype(), [&]<class T>(T) {
      const T* dy = values<T>(gradient);
      const T* h = values<T>(normalised);
      column_sums(positions, width, values<double>(sums), [&](auto i, auto c) {
        return dy[i * width + c] * h[i * width + c];
      });
      for (std::int64_t c = 0; c < width; ++c)
        values<T>(weight_.gradient)[c] += static_cast<T>(values<double>(sums)[c]);
      add_column_sums(context, dy, positions, width, values<T>(bias_.gradient));
    });
    stash.clear(context);
  }

  [[nodiscard]] std::vector<Parameter*> parameters() override { return {&weight_, &bias_}; }
  void initialize(std::uint64_t) override {
    for (Parameter* parameter : parameters()) allocate(*parameter, dtype(), {channels_});
    with_precision(dtype(), [&]<class T>(T) { std::ranges::fill(weight_.value.as<T>(), T(1)); });
  }
  [[nodiscard]] std::size_t bytes_after_forward(std::int64_t rows) const override {
    return kept_bytes(rows * (input_columns() + groups_));
  }
  [[nodiscard]] std::size_t bytes_after_input(std::int64_t rows) const override {
    return kept_bytes(2 * rows * input_columns());
  }
  [[nodiscard]] std::string describe() const override {
    const std::string extents = to_string(input_extents());
    return fmt::format("layers.{}: group norm of {} in {} groups", number(), extents, groups_);
  }

 private:
  [[nodiscard]] Sample sample() const {
    return {.positions = input_columns() / channels_, .channels = channels_, .groups = groups_};
  }

  std::int64_t channels_;
  std::int64_t groups_;
  double epsilon_;
  Parameter weight_;
  Parameter bias_;
};

}  // namespace

LayerKind group_norm_kind() {
  return kind_of<GroupNorm>("group_norm", {"groups", "epsilon"});
}

}  // namespace millrace
