// Walks the catalogue by the flags of its entries: a new schedule joins the portfolio by being one.
#include "plan/search/portfolio.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/passes.hpp"

namespace millrace::plan {

namespace {

/// What a forward costs to make and time, by the cheapest generators (measured at p = 64 and m =
/// 512): those that look at times, rewrite blocks or search among them.
struct Effort {
  std::string_view name;
  int times;
};

constexpr std::array kEfforts = {Effort{"zb-auto", 2},
                                 Effort{"zb-v-auto", 2},
                                 Effort{"v-min", 2},
                                 Effort{"v-half", 3},
                                 Effort{"wave", 9},
                                 Effort{"1f1b-v", 4},
                                 Effort{"v-zb", 400}};

int effort(const ScheduleEntry& entry) {
  for (const Effort& known : kEfforts)
    if (known.name == entry.name) return known.times;
  return 1;
}

constexpr std::int64_t kMostForwards = std::int64_t{1} << 24;  // of one schedule
constexpr int kMostChunks = 4;
constexpr int kMostWaves = 2;
constexpr std::string_view kPairs = "interleaved-pairs";  // without times of pairs: as interleaved
// Whose stages become neighbouring chunks; their order is improved like any other.
constexpr std::array<std::string_view, 3> kCutApart = {"zb-h1", "zb-auto", "seq-1f1b"};
constexpr int kSeveralLimits = 512;  // ranks x micro-batches up to which several limits are asked

double mean(const std::vector<double>& values, double when_empty) {
  if (values.empty()) return when_empty;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// Whether seeds have pairs: some run as one, and no stage may recompute.
bool weighs_pairs(const SearchOptions& options, const Shape& shape) {
  return !options.recompute && search_cost(options, shape).pair.any();
}

Program with_weighed_pairs(Program program, const SearchOptions& options) {
  return weighs_pairs(options, program.shape) ? program : decouple_pairs(std::move(program));
}

Shape loop_shape(const SearchOptions& options) {
  return {.ranks = options.ranks,
          .micro_batches = options.micro_batches,
          .slices = options.slices.value_or(1),
          .placement = Placement::loop(options.ranks, options.chunks.value_or(1)),
          .replica_of = {},
          .forward_only = false};
}

/// What the generators that look at times are told: the mean stage, scaled to a full one.
generators::Request base_options(const SearchOptions& options) {
  const int chunks = options.chunks.value_or(1);
  const Cost cost = search_cost(options, loop_shape(options));
  // Ticks are of a slice, micro-batches are told.
  const double per_unit = chunks * options.slices.value_or(1) / cost.ticks_per_unit;
  generators::Request base;
  base.ranks = options.ranks;
  base.micro_batches = options.micro_batches;
  if (options.slices.value_or(1) > 1) base.slices = options.slices;
  base.mean.forward = mean(cost.forward, 1) * per_unit;
  base.mean.input = mean(cost.backward_input, 1) * per_unit;
  base.mean.weight = mean(cost.backward_weight, 1) * per_unit;
  base.mean.latency = mean(cost.link_latency, cost.latency) / cost.ticks_per_unit;
  base.mean.memory_forward = mean(cost.memory_forward, 1.0 / chunks) * chunks;
  base.mean.memory_forward_peak = mean(cost.memory_forward_peak, 0) * chunks;
  base.mean.memory_input = mean(cost.memory_input, 0) * chunks;
  base.mean.memory_weight = mean(cost.memory_weight, -1.0 / chunks) * chunks;
  if (!cost.memory_input_peak.empty())
    base.mean.memory_input_peak = mean(cost.memory_input_peak, 0) * chunks;
  return base;
}

class Collector {
 public:
  explicit Collector(const SearchOptions& options)
      : options_(options), base_(base_options(options)) {}

  std::vector<Candidate> run() {
    for (const ScheduleEntry& entry : schedules())
      if (entry.takes("slices") == (options_.slices.value_or(1) > 1) && entry.name != "forward" &&
          (entry.name != kPairs || weighs_pairs(options_, loop_shape(options_))))
        by_chunks(entry);
    std::ranges::stable_sort(candidates_, {}, &Candidate::cost);
    return std::move(candidates_);
  }

 private:
  void by_chunks(const ScheduleEntry& entry) {
    if (!entry.takes("chunks")) {
      const int own = chunks_of(entry, base_), wanted = options_.chunks.value_or(own);
      const bool cut_apart = std::ranges::find(kCutApart, entry.name) != kCutApart.end();
      neighbours_ = cut_apart && own == 1 ? wanted : 1;
      by_group(entry, base_);
      neighbours_ = 1;
      return;
    }
    for (int v = 1; v <= std::max(kMostChunks, options_.chunks.value_or(1)); ++v) {
      if (options_.chunks && v != *options_.chunks) continue;
      generators::Request with = base_;
      with.chunks = v;
      by_group(entry, with);
    }
  }

  void by_group(const ScheduleEntry& entry, const generators::Request& with) {
    by_waves(entry, with);
    if (!entry.takes("group") || with.chunks == 1) return;
    const int p = options_.ranks, m = options_.micro_batches;
    std::set<int> groups{2 * p, m};
    for (int g = (p + 1) / 2; g <= p; g += std::max(1, p / 8)) groups.insert(g);
    for (const int group : groups) {
      generators::Request grouped = with;
      grouped.group = group;
      by_waves(entry, grouped);
    }
  }

  void by_waves(const ScheduleEntry& entry, const generators::Request& with) {
    by_limit(entry, with);
    for (int waves = 2; entry.takes("waves") && waves <= kMostWaves; ++waves) {
      generators::Request waved = with;
      waved.waves = waves;
      by_limit(entry, waved);
    }
  }

  /// Without a limit, several: the front shall show what memory buys.
  void by_limit(const ScheduleEntry& entry, const generators::Request& with) {
    const bool limited = options_.memory_limit < std::numeric_limits<double>::infinity();
    if (!entry.takes("memory_limit") || !limited) add(entry, with);
    if (!entry.takes("memory_limit")) return;
    std::vector<double> limits{options_.memory_limit};
    if (!limited && options_.ranks * options_.micro_batches > kSeveralLimits) return;
    if (!limited) {
      const double one = options_.ranks * base_.mean.memory_forward;
      limits = {0.5 * one, 0.75 * one, one, 1.5 * one, 2 * one};
    }
    for (const double limit : limits) {
      generators::Request capped = with;
      capped.memory_limit = limit;
      add(entry, capped);
    }
  }

  void add(const ScheduleEntry& entry, const generators::Request& with) {
    const int chunks = chunks_of(entry, with);
    if (options_.chunks && neighbours_ * chunks * entry.replicas != *options_.chunks) return;
    if (!options_.bidirectional && entry.replicas > 1) return;
    const std::int64_t forwards =
        std::int64_t{with.ranks} * with.micro_batches * chunks * with.slices.value_or(1);
    candidates_.push_back({.entry = &entry,
                           .options = with,
                           .cost = neighbours_ * forwards * effort(entry),
                           .number = candidates_.size(),
                           .neighbours = neighbours_});
  }

  const SearchOptions& options_;
  generators::Request base_;
  std::vector<Candidate> candidates_;
  int neighbours_ = 1;
};

void require_asked_for(const Program& from, const SearchOptions& options) {
  const Shape& shape = from.shape;
  require(shape.ranks == options.ranks && shape.micro_batches == options.micro_batches &&
              shape.slices == options.slices.value_or(1) &&
              shape.chunks() == options.chunks.value_or(shape.chunks()),
          "the search begins with " + from.name + ", which has other counts");
  require(!shape.forward_only && (options.bidirectional || shape.replicas() == 1),
          "the search begins with " + from.name + ", which has " +
              (shape.forward_only ? "no backward" : "two copies of the model"));
  const std::vector<bool> stages = recomputed_stages(from);
  require(options.recompute || std::ranges::find(stages, true) == stages.end(),
          "the search begins with " + from.name +
              ", which recomputes; let the search choose which stages do");
}

/// The same order with each stage cut into `chunks`, which run one after the other on its rank.
Program with_neighbours(Program program, int chunks) {
  Shape& shape = program.shape;
  std::vector<std::vector<Rank>> placement(static_cast<std::size_t>(shape.replicas()));
  for (int r = 0; r < shape.replicas(); ++r)
    for (int s = 0; s < chunks * shape.stages(); ++s)
      placement[static_cast<std::size_t>(r)].push_back(shape.rank(Replica{r}, Stage{s / chunks}));
  for (auto& list : program.ranks) {
    std::vector<Action> cut;
    for (const Action& action : list)
      for (int c = 0; c < chunks; ++c) {
        const int chunk = action.op == Op::Forward ? c : chunks - 1 - c;
        cut.push_back(action);
        cut.back().stage.value = action.stage.value * chunks + chunk;
      }
    list = std::move(cut);
  }
  shape.placement = Placement(std::move(placement));
  return program;
}

/// The same order with a B in place of each I, without W.
Program with_full_backward(Program program) {
  for (auto& list : program.ranks) {
    std::vector<Action> whole;
    for (Action action : list) {
      const bool weight = action.op == Op::BackwardWeight;
      if (weight && !whole.empty()) whole.back().with_next = false;
      if (weight) continue;
      if (action.op == Op::BackwardInput) action.op = Op::Backward;
      whole.push_back(action);
    }
    list = std::move(whole);
  }
  return program;
}

/// As a search has programs: the passes, each recompute right before its backward.
Program passes_of(const Program& given, const SearchOptions& options) {
  std::set<Action> again;
  for (const auto& list : given.ranks)
    for (const Action& action : list)
      if (action.op == Op::Recompute) again.insert(action);
  Program passes = compute_only(with_weighed_pairs(given, options));
  if (options.full_backward) passes = with_full_backward(std::move(passes));
  return insert_recompute(passes, [&](Action action) {
    action.op = Op::Recompute;
    action.with_next = false;
    return again.contains(action);
  });
}

}  // namespace

std::string generator_of(const Candidate& candidate) {
  if (candidate.given != nullptr) return candidate.given->name;
  return std::string(candidate.entry->name) +
         (candidate.neighbours > 1 ? " with neighbouring chunks" : "");
}

void require_counts(const SearchOptions& options) {
  require(options.ranks >= 1 && options.micro_batches >= 1,
          "search needs at least 1 rank and 1 micro-batch; got " + std::to_string(options.ranks) +
              " and " + std::to_string(options.micro_batches));
  require(!options.chunks || *options.chunks >= 1,
          "search needs at least 1 chunk; got " + std::to_string(options.chunks.value_or(1)));
  require(options.slices.value_or(1) >= 1,
          "search needs at least 1 slice; got " + std::to_string(options.slices.value_or(1)));
  const std::array counts = {std::pair("ranks", options.ranks),
                             std::pair("micro_batches", options.micro_batches),
                             std::pair("chunks", options.chunks.value_or(1)),
                             std::pair("slices", options.slices.value_or(1))};
  std::int64_t forwards = 1;  // a factor is below 2^31: nothing overflows
  ParameterText given = "";
  for (const auto& [name, count] : counts) {
    if (count > 1)
      given += (given.text().empty() ? "" : ", ") + named(name) + " " + std::to_string(count);
    forwards = std::min(forwards * std::max(1, count), kMostForwards + 1);
  }
  require(forwards <= kMostForwards,
          given + ": a search takes at most " + std::to_string(kMostForwards) +
              " forwards, because it holds many schedules at once; show and simulate take more");
}

std::string title(const Candidate& candidate) {
  const std::string parameters = to_string(set_values(candidate.options));
  return generator_of(candidate) + (parameters.empty() ? "" : " " + parameters);
}

std::vector<Candidate> portfolio(const SearchOptions& options) {
  std::vector<Candidate> candidates = Collector(options).run();
  if (options.from == nullptr) return candidates;
  require_asked_for(*options.from, options);
  candidates.insert(candidates.begin(), {.options = {}, .given = options.from.get()});
  return candidates;
}

std::optional<Program> make(const Candidate& candidate, const SearchOptions& options) {
  if (candidate.given != nullptr) return passes_of(*candidate.given, options);
  try {
    Program program = generators::generate(*candidate.entry, candidate.options);
    if (candidate.neighbours > 1)
      program = with_neighbours(decouple_pairs(std::move(program)), candidate.neighbours);
    if (options.full_backward) program = with_full_backward(std::move(program));
    if (options.chunks && program.shape.chunks() != *options.chunks) return std::nullopt;
    if (options.placement && program.shape.placement != *options.placement) return std::nullopt;
    return with_weighed_pairs(std::move(program), options);
  } catch (const InvalidArgument&) {
    return std::nullopt;  // the schedule has no meaning with these counts
  }
}

Cost search_cost(const SearchOptions& options, const Shape& shape) {
  return options.cost ? options.cost(shape) : Cost::unit(shape);
}

}  // namespace millrace::plan
