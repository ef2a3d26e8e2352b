// From a choice of layers to segments of stages, and the search for a choice that fits.
#include <algorithm>
#include <charconv>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/stages/partition.hpp"
#include "millrace/training/records.hpp"
#include "millrace/training/trainer_options.hpp"

namespace millrace {
namespace {

constexpr const char* kForm =
    "none, all, stages:LIST, every-K, selective:LAYERS (numbers, ranges A-B, kinds) or auto:BYTES "
    "(with K, M, "
    "G)";

[[noreturn]] void refuse(std::string_view text, const std::string& why) {
  throw InvalidArgument("recompute '" + std::string(text) + "': " + why + "; allowed is " + kForm);
}

template <class Number>
std::optional<Number> whole_number(std::string_view text) {
  Number number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || rest != end) return std::nullopt;
  return number;
}

std::size_t read_bytes(std::string_view text, std::string_view bytes) {
  std::size_t factor = 1;
  constexpr std::string_view kUnits = "KMG";
  if (!bytes.empty())
    if (const std::size_t unit = kUnits.find(bytes.back()); unit != std::string_view::npos) {
      factor = std::size_t{1} << 10U * (unit + 1);
      bytes.remove_suffix(1);
    }
  const auto count = whole_number<std::size_t>(bytes);
  if (!count || *count < 1 || *count > std::numeric_limits<std::size_t>::max() / factor)
    refuse(text, "'" + std::string(bytes) + "' is no number of bytes");
  return *count * factor;
}

std::vector<std::string> read_layers(std::string_view text, std::string_view list) {
  std::vector<std::string> layers;
  for (;;) {
    const std::size_t comma = list.find(',');
    layers.emplace_back(list.substr(0, comma));
    if (layers.back().empty()) refuse(text, "a layer is missing");
    if (comma == std::string_view::npos) return layers;
    list.remove_prefix(comma + 1);
  }
}

/// Adds the layers that one word names: "3", "5-7" or a kind.
void choose(const std::string& word, const ModelSpec& model, std::vector<bool>& chosen) {
  const std::size_t dash = word.find('-');
  const auto first = whole_number<int>(std::string_view(word).substr(0, dash));
  const auto last = dash == std::string::npos
                        ? first
                        : whole_number<int>(std::string_view(word).substr(dash + 1));
  if (first && last) {
    require(*first >= 0 && *first <= *last && *last < model.layer_count(), [&] {
      return "recompute of layer " + word + ": the model has layers 0 to " +
             std::to_string(model.layer_count() - 1);
    });
    std::fill(chosen.begin() + *first, chosen.begin() + *last + 1, true);
    return;
  }
  bool found = false;
  for (int i = 0; i < model.layer_count(); ++i)
    if (model.layers[static_cast<std::size_t>(i)].kind == word)
      found = chosen[static_cast<std::size_t>(i)] = true;
  require(found, [&] {
    std::string kinds;
    for (const LayerSpec& layer : model.layers)
      if (kinds.find(layer.kind) == std::string::npos)
        kinds += (kinds.empty() ? "" : ", ") + layer.kind;
    return "recompute of '" + word + "': the model has no such layer; it has layers 0 to " +
           std::to_string(model.layer_count() - 1) + " of the kinds " + kinds;
  });
}

/// Numbers of segments stage by stage: a new one behind a layer that is kept, at a boundary, and
/// every `length` layers of the model.
std::vector<int> segments_of(const std::vector<bool>& chosen,
                             std::span<const int> boundaries,
                             int length) {
  std::vector<int> segments(chosen.size(), StageModule::kKept);
  for (std::size_t stage = 0; stage < boundaries.size() - 1; ++stage) {
    const LayerRange own = layers_of(boundaries, stage);
    int next = 0;
    for (int i = own.first; i < own.last; ++i) {
      const auto layer = static_cast<std::size_t>(i);
      if (!chosen[layer]) continue;
      const bool begins = i == own.first || !chosen[layer - 1] || i % length == 0;
      segments[layer] = begins ? next++ : next - 1;
    }
  }
  return segments;
}

/// All stages of a cut model without memory for parameters, to ask what they would stash.
class ModelStash {
 public:
  ModelStash(const ModelSpec& model, std::span<const int> boundaries, const Program& program)
      : boundaries_(boundaries), program_(program) {
    const Shape& shape = program.shape;
    for (int stage = 0; stage < shape.stages(); ++stage) {
      stages_.push_back(stage_without_parameters(model, boundaries, stage));
      stages_.back()->reserve(1, shape.slices);
      for (int replica = 0; replica < shape.replicas(); ++replica)
        hosted_.push_back({Replica{replica}, Stage{stage}, stages_.back().get()});
    }
  }

  /// Peaks by rank when the chosen layers are recomputed.
  std::vector<std::size_t> peaks(const std::vector<bool>& chosen, const UnitSize& micro_batch) {
    const auto segments = segments_of(chosen, boundaries_, std::numeric_limits<int>::max());
    for (std::size_t stage = 0; stage < stages_.size(); ++stage)
      stages_[stage]->recompute_in(segments_of_stage(segments, boundaries_, stage));
    const Program recomputing =
        insert_recompute(program_, recomputed_stages(segments, boundaries_));
    const auto units = static_cast<std::size_t>(program_.shape.micro_batches) *
                       static_cast<std::size_t>(program_.shape.slices);
    return predict_stash_peaks(recomputing, hosted_, std::vector<UnitSize>(units, micro_batch));
  }

  /// The layers of the stages that a rank hosts, as ranges.
  [[nodiscard]] std::vector<LayerRange> layers_on(Rank rank) const {
    std::vector<LayerRange> ranges;
    for (const HostedStage& hosted : hosted_)
      if (program_.shape.rank(hosted.replica, hosted.stage) == rank)
        ranges.push_back(layers_of(boundaries_, hosted.stage.index()));
    return ranges;
  }

 private:
  std::span<const int> boundaries_;
  const Program& program_;
  std::vector<std::unique_ptr<StageModule>> stages_;
  std::vector<HostedStage> hosted_;
};

/// Chooses layers until no rank's predicted stash exceeds a bound.
class Fitting {
 public:
  Fitting(ModelStash& stash, const UnitSize& micro_batch, int layers)
      : stash_(stash), micro_batch_(micro_batch), chosen_(static_cast<std::size_t>(layers)) {}

  std::vector<bool> fit(std::size_t bytes) {
    for (;;) {
      const auto peaks = stash_.peaks(chosen_, micro_batch_);
      const auto fullest = std::ranges::max_element(peaks);
      if (*fullest <= bytes) break;
      const Rank rank{static_cast<int>(fullest - peaks.begin())};
      require(choose_for(rank, *fullest, bytes), [&] {
        return "recompute auto:" + std::to_string(bytes) + ": rank " + std::to_string(rank.value) +
               " is predicted to stash at least " + std::to_string(*fullest) +
               " bytes, whatever is recomputed";
      });
    }
    give_back(bytes);
    return chosen_;
  }

 private:
  using Range = std::pair<int, int>;

  /// The shortest run of layers with which the rank fits, or the one that frees most per layer.
  /// Whether there is one that frees anything.
  bool choose_for(Rank rank, std::size_t peak, std::size_t bytes) {
    double most = 0;
    Range best;
    for (const auto& [first, last] : stash_.layers_on(rank))
      for (int from = first; from < last; ++from)
        for (int to = from + 1; to <= last && !chosen_[static_cast<std::size_t>(to - 1)]; ++to) {
          const std::size_t left = peak_with({from, to}, rank);
          if (left >= peak) continue;
          constexpr double kFits = 1e30;
          const double freed = left <= bytes ? kFits : static_cast<double>(peak - left);
          if (freed / (to - from) > most) {
            most = freed / (to - from);
            best = {from, to};
          }
        }
    if (most > 0) set(best, true);
    return most > 0;
  }

  /// Lets layers keep their stash that a later choice has made needless.
  void give_back(std::size_t bytes) {
    for (int i = 0; i < static_cast<int>(chosen_.size()); ++i) {
      if (!chosen_[static_cast<std::size_t>(i)]) continue;
      set({i, i + 1}, false);
      if (std::ranges::max(stash_.peaks(chosen_, micro_batch_)) > bytes) set({i, i + 1}, true);
    }
  }

  std::size_t peak_with(const Range& range, Rank rank) {
    set(range, true);
    const std::size_t peak = stash_.peaks(chosen_, micro_batch_)[rank.index()];
    set(range, false);
    return peak;
  }

  void set(const Range& range, bool value) {
    std::fill(chosen_.begin() + range.first, chosen_.begin() + range.second, value);
  }

  ModelStash& stash_;
  const UnitSize& micro_batch_;
  std::vector<bool> chosen_;
};

/// Every layer of these stages.
std::vector<bool> layers_of_stages(const std::vector<bool>& stages,
                                   std::span<const int> boundaries) {
  std::vector<bool> chosen(static_cast<std::size_t>(boundaries.back()), false);
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    const LayerRange own = layers_of(boundaries, stage);
    std::fill(chosen.begin() + own.first, chosen.begin() + own.last, bool{stages[stage]});
  }
  return chosen;
}

std::vector<bool> chosen_layers(const Recompute& recompute,
                                const ModelSpec& model,
                                std::span<const int> boundaries,
                                const Program& program,
                                const UnitSize& micro_batch) {
  const std::vector<bool> own = recomputed_stages(program);
  if (std::ranges::find(own, true) != own.end()) {
    require(recompute.kind == RecomputeKind::None, [&] {
      return "recompute '" + to_string(recompute) + "': the plan recomputes " +
             describe_recompute(program) + " by itself; leave it out";
    });
    return layers_of_stages(own, boundaries);
  }
  std::vector<bool> chosen(static_cast<std::size_t>(model.layer_count()), false);
  switch (recompute.kind) {
    case RecomputeKind::None:
      return chosen;
    case RecomputeKind::All:
    case RecomputeKind::Every:
      chosen.flip();
      return chosen;
    case RecomputeKind::Stages:
      return layers_of_stages(parse_recompute_stages(recompute.stages, program.shape.stages()),
                              boundaries);
    case RecomputeKind::Selective:
      for (const std::string& word : recompute.layers) choose(word, model, chosen);
      return chosen;
    case RecomputeKind::Auto:
      break;
  }
  ModelStash stash(model, boundaries, program);
  return Fitting(stash, micro_batch, model.layer_count()).fit(recompute.bytes);
}

}  // namespace

Recompute parse_recompute(std::string_view text) {
  constexpr std::string_view kStages = "stages:", kEvery = "every-",
                             kSelective = "selective:", kAuto = "auto:";
  if (text == "none") return {};
  if (text == "all") return {.kind = RecomputeKind::All};
  if (text.starts_with(kStages))
    return {.kind = RecomputeKind::Stages, .stages = std::string(text)};
  if (text.starts_with(kEvery)) {
    const auto every = whole_number<int>(text.substr(kEvery.size()));
    if (!every || *every < 1) refuse(text, "the length of a segment is at least 1 layer");
    return {.kind = RecomputeKind::Every, .every = *every};
  }
  if (text.starts_with(kSelective))
    return {.kind = RecomputeKind::Selective,
            .layers = read_layers(text, text.substr(kSelective.size()))};
  if (text.starts_with(kAuto))
    return {.kind = RecomputeKind::Auto, .bytes = read_bytes(text, text.substr(kAuto.size()))};
  refuse(text, "unknown choice");
}

std::string to_string(const Recompute& recompute) {
  std::string layers;
  switch (recompute.kind) {
    case RecomputeKind::None:
      return "none";
    case RecomputeKind::All:
      return "all";
    case RecomputeKind::Stages:
      return recompute.stages;
    case RecomputeKind::Every:
      return "every-" + std::to_string(recompute.every);
    case RecomputeKind::Selective:
      for (const std::string& word : recompute.layers) layers += (layers.empty() ? "" : ",") + word;
      return "selective:" + layers;
    case RecomputeKind::Auto:
      return "auto:" + std::to_string(recompute.bytes);
  }
  return "?";
}

std::vector<int> recompute_segments(const Recompute& recompute,
                                    const ModelSpec& model,
                                    std::span<const int> boundaries,
                                    const Program& program,
                                    const UnitSize& micro_batch) {
  const int length =
      recompute.kind == RecomputeKind::Every ? recompute.every : std::numeric_limits<int>::max();
  return segments_of(
      chosen_layers(recompute, model, boundaries, program, micro_batch), boundaries, length);
}

std::vector<int> segments_of_stage(std::span<const int> segments,
                                   std::span<const int> boundaries,
                                   std::size_t stage) {
  const LayerRange own = layers_of(boundaries, stage);
  return {segments.begin() + own.first, segments.begin() + own.last};
}

std::vector<bool> recomputed_stages(std::span<const int> segments,
                                    std::span<const int> boundaries) {
  std::vector<bool> stages(boundaries.size() - 1, false);
  for (std::size_t stage = 0; stage < stages.size(); ++stage)
    stages[stage] = std::ranges::any_of(segments_of_stage(segments, boundaries, stage),
                                        [](int segment) { return segment != StageModule::kKept; });
  return stages;
}

}  // namespace millrace
