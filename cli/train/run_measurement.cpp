// The measurements of a run. Rank 0 gathers those of all processes after the last step.
#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <limits>
#include <thread>
#include <variant>

#include "cli/train/run.hpp"
#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/graph.hpp"
#include "millrace/scheduler/plan/simulate.hpp"
#include "millrace/scheduler/plan/verify.hpp"
#include "millrace/training/ranks.hpp"
#include "millrace/transport/shared_memory.hpp"

namespace millrace::cli {

namespace {

constexpr std::size_t kMostSteps = 32;
constexpr std::size_t kMostBytes = std::size_t{4} << 20U;

/// Names the machine since its last start: processes with the same name have the same clock.
std::string this_machine() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

void put(std::string& text, double value) {
  std::array<char, sizeof value> bytes{};
  std::memcpy(bytes.data(), &value, sizeof value);
  text.append(bytes.data(), bytes.size());
}

double take(const std::string& text, std::size_t& at) {
  double value = 0;
  require(at + sizeof value <= text.size(), "a rank's timeline is cut short");
  std::memcpy(&value, text.data() + at, sizeof value);
  at += sizeof value;
  return value;
}

std::array<std::vector<double>*, 6> bytes_of(Cost& cost) {
  return {&cost.memory_forward,
          &cost.memory_input_peak,
          &cost.memory_input,
          &cost.memory_weight,
          &cost.memory_boundary,
          &cost.gradient_bytes};
}

StepUse simulated_use(const Graph& graph, const Cost& cost) {
  const auto run = simulate(graph, cost);
  return step_use(graph.program(), std::get<Timeline>(run));
}

void keep_larger(std::vector<std::size_t>& peaks, const std::vector<std::size_t>& of_step) {
  peaks.resize(of_step.size());
  for (std::size_t i = 0; i < peaks.size(); ++i) peaks[i] = std::max(peaks[i], of_step[i]);
}

/// Processors for the ranks of a pipeline that lives in this process, where they are fewer.
int shared_cores(const TrainJob& job) {
  const int ranks = job.program.shape.ranks;
  if (job.options.run.executor == "sequential") return ranks > 1 ? 1 : 0;
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  return cores < ranks ? cores : 0;
}

}  // namespace

RunMeasurement::RunMeasurement(const TrainJob& job,
                               const Trainer& trainer,
                               ProcessGroup& group,
                               Rank rank)
    : job_(job),
      trainer_(trainer),
      group_(group),
      rank_(job.grid().place_of(rank)),
      of_first_copy_(job.grid().copy_of(rank) == 0),
      profile_(trainer.executor().program()) {
  std::size_t longest = 1;  // over all ranks: all must keep the same steps
  for (const auto& list : trainer.executor().program().ranks)
    longest = std::max(longest, list.size());
  most_ = std::clamp<std::size_t>(kMostBytes / (longest * sizeof(Interval)), 1, kMostSteps);
  peaks_.resize(static_cast<std::size_t>(job.program.shape.ranks));
}

std::vector<UnitSize> unit_sizes(const TrainJob& job) {
  const Shape& shape = job.program.shape;
  const int passes = job.grid().data() * job.options.step.accumulate;
  std::vector<UnitSize> sizes = millrace::unit_sizes(
      job.full_batch(), job.positions(), passes * shape.micro_batches, shape.slices);
  // The first pass of the first copy has the largest.
  sizes.resize(sizes.size() / static_cast<std::size_t>(passes));
  return sizes;
}

void RunMeasurement::after_step(const StepReport& report) {
  keep_larger(peaks_, report.peak_stash_bytes);
  keep_larger(sum_peaks_, report.peak_sum_bytes);
  if (report.samples != job_.full_batch()) return;
  // The first step pays for memory and caches; it counts only when there is no other.
  const bool forgets = seen_++ == 1;
  if (!is_alone()) {
    if (forgets || steps_.size() == most_) steps_.pop_front();
    return keep_row(report.seconds);
  }
  if (forgets) profile_ = Profile(trainer_.executor().program());
  last_ = trainer_.executor().timeline();
  profile_.add(last_, outside_passes(report.seconds));
}

/// Of a step that took so long. Of several passes the last one stands for all.
double RunMeasurement::outside_passes(double seconds) const {
  const StepUse use = step_use(trainer_.executor().program(), last_);
  return seconds - use.makespan * static_cast<double>(job_.options.step.accumulate);
}

void RunMeasurement::keep_row(double seconds) {
  const auto started = trainer_.executor().started().time_since_epoch();
  steps_.push_back({std::chrono::duration<double>(started).count(),
                    seconds,
                    trainer_.executor().timeline().ranks[rank_.index()]});
}

double RunMeasurement::bubble() const {
  const StepUse use = step_use(trainer_.executor().program(), trainer_.executor().timeline());
  return is_alone() ? use.bubble() : use.ranks[rank_.index()].bubble(use.makespan);
}

std::string RunMeasurement::pack() const {
  std::string text = this_machine() + "\n";
  for (const Step& step : steps_) {
    put(text, step.started);
    put(text, step.seconds);
    put(text, static_cast<double>(step.row.size()));
    for (const Interval& interval : step.row) {
      put(text, interval.start);
      put(text, interval.end);
    }
  }
  return text;
}

std::vector<RunMeasurement::Step> RunMeasurement::unpack(const std::string& text,
                                                         std::string& machine) {
  std::size_t at = std::min(text.find('\n'), text.size() - 1) + 1;
  machine = text.substr(0, at);
  std::vector<Step> steps;
  while (at < text.size()) {
    Step& step = steps.emplace_back();
    step.started = take(text, at);
    step.seconds = take(text, at);
    step.row.resize(static_cast<std::size_t>(take(text, at)));
    for (Interval& interval : step.row) {
      interval.start = take(text, at);
      interval.end = take(text, at);
    }
  }
  return steps;
}

/// Each stage's stash bytes are known where it lives; copies of a stage say the same.
void RunMeasurement::add_memory(Cost& cost) const {
  const auto stages = static_cast<std::size_t>(job_.program.shape.stages());
  const UnitSize size = unit_sizes(job_).front();
  Profile own(trainer_.executor().program());
  own.add(trainer_.executor().timeline());
  Cost mine = own.cost(trainer_.stages(), size);
  std::vector<double> values(stages, 0.0);  // how many ranks say something about the stage
  for (std::size_t i = 0; i < stages; ++i)
    for (const HostedStage& hosted : trainer_.stages())
      if (hosted.stage.index() == i) values[i] = 1;
  for (const auto* memory : bytes_of(mine))
    values.insert(values.end(), memory->begin(), memory->end());
  group_.sum(values, Label::Measurement);
  std::size_t at = stages;
  for (auto* memory : bytes_of(cost)) {
    memory->assign(stages, 0.0);
    for (std::size_t i = 0; i < stages; ++i) (*memory)[i] = values[at++] / std::max(1.0, values[i]);
  }
}

/// Puts the rows of all processes on one clock, step after step.
void RunMeasurement::add_rows_of_all() {
  std::vector<std::string> texts = group_.gather(pack(), Label::Measurement);
  texts.resize(job_.program.ranks.size());  // of the first copy
  std::vector<std::vector<Step>> of_rank(texts.size());
  std::vector<std::string> machines(texts.size());
  for (std::size_t i = 0; i < texts.size(); ++i) of_rank[i] = unpack(texts[i], machines[i]);

  for (std::size_t k = 0; k < steps_.size(); ++k) {
    last_ = {};
    double first = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < texts.size(); ++i)
      if (machines[i] == machines[0]) first = std::min(first, of_rank[i].at(k).started);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      Step& step = of_rank[i].at(k);
      const double late = machines[i] == machines[0] ? step.started - first : 0;
      for (Interval& interval : step.row) interval = {interval.start + late, interval.end + late};
      last_.ranks.push_back(std::move(step.row));
    }
    profile_.add(last_, outside_passes(of_rank[0].at(k).seconds));
  }
}

/// Of all processes, the most that one of a rank has.
std::vector<std::size_t> RunMeasurement::most_of_copies(std::vector<double> mine) const {
  group_.all_reduce(mine, ReduceOp::Max, Label::Measurement);
  return {mine.begin(), mine.end()};
}

void RunMeasurement::add_optimizer(TrainOutcome& outcome) const {
  const TrainingState& state = trainer_.state();
  std::vector<double> counted;
  for (int rank = 0; rank < state.ranks(); ++rank)
    counted.push_back(static_cast<double>(state.optimizer_bytes(Rank{rank})));
  const auto predicted =
      predict_optimizer_bytes(job_.program.shape,
                              trainer_.stages(),
                              make_optimizer(job_.options.step.optimizer)->slots(),
                              job_.options.step.shard_optimizer ? job_.grid().data() : 1);
  outcome.optimizer_counted = most_of_copies(std::move(counted));
  outcome.optimizer_predicted = most_of_copies({predicted.begin(), predicted.end()});
}

/// What processes of a host made for what they send each other, where they share memory.
void RunMeasurement::add_shared(TrainOutcome& outcome, const Endpoint* endpoint) const {
  if (endpoint == nullptr) return;
  const auto shared = endpoint->shared_bytes();
  std::vector<ChannelDepth> depths;
  if (!shared.empty())
    depths = on_grid(channel_depths(job_.model, job_.plan(), job_.options, job_.grid().data()),
                     job_.grid());
  std::vector<double> counted(peaks_.size()), predicted = counted, collectives = counted;
  for (const SharedBytes& of : shared) {
    counted[rank_.index()] += static_cast<double>(of.of_passes);
    collectives[rank_.index()] += static_cast<double>(of.of_collectives);
    predicted[rank_.index()] +=
        static_cast<double>(planned_shared_bytes(depths, endpoint->rank(), of.receiver));
  }
  outcome.shared_counted = most_of_copies(std::move(counted));
  outcome.shared_predicted = most_of_copies(std::move(predicted));
  outcome.shared_by_collectives = most_of_copies(std::move(collectives));
}

/// Of the tree over all passes.
std::vector<std::size_t> RunMeasurement::sums_predicted(const Cost& cost) const {
  const std::vector<std::size_t> bytes(cost.gradient_bytes.begin(), cost.gradient_bytes.end());
  return partial_sums(trainer_.executor().program(), bytes, job_.options.step.accumulate)
      .rank_bytes;
}

RunMeasurement::Whole RunMeasurement::gather(TrainOutcome& outcome, const Endpoint* endpoint) {
  const Program& program = trainer_.executor().program();
  outcome.peak_counted = peaks_;
  std::vector<double> peaks;
  for (const std::size_t peak : predict_stash_peaks(program, trainer_.stages(), unit_sizes(job_)))
    peaks.push_back(of_first_copy_ ? static_cast<double>(peak) : 0);
  group_.sum(peaks, Label::Measurement);
  for (const double peak : peaks) outcome.peak_predicted.push_back(static_cast<std::size_t>(peak));
  add_optimizer(outcome);
  add_shared(outcome, endpoint);

  if (!is_alone()) add_rows_of_all();
  Whole whole{std::move(last_), profile_.cost(trainer_.stages(), unit_sizes(job_).front())};
  if (!is_alone()) add_memory(whole.cost);
  outcome.sums_counted = sum_peaks_;
  if (job_.options.step.accumulate_order == AccumulateOrder::Tree)
    outcome.sums_predicted = sums_predicted(whole.cost);
  outcome.measured = profile_.use();
  const Graph graph(program);
  outcome.simulated = simulated_use(graph, whole.cost);
  // Where the system takes turns between the threads of ranks, a pass's time has waits in it.
  if (!is_alone() || job_.options.run.executor == "ranks") return whole;
  Cost shared = whole.cost;
  outcome.cores = shared.cores = shared_cores(job_);
  if (outcome.cores > 0) outcome.on_cores = simulated_use(graph, shared);
  return whole;
}

}  // namespace millrace::cli
