// A window of the sequence at a time: a forward-only program with a slice for every token, whose
// inputs wait for what the last stage gave for the slice before.
#include "millrace/training/generator.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/core/random.hpp"
#include "millrace/scheduler/run/executor.hpp"
#include "millrace/stages/layer.hpp"

namespace millrace {
namespace {

constexpr std::chrono::seconds kPatience(60);

/// The next token of a row of scores, by draw `number` of a sample.
std::int32_t drawn(std::span<const float> scores,
                   const Sampling& sampling,
                   std::uint32_t sample,
                   std::uint32_t number) {
  const auto best = std::ranges::max_element(scores);
  if (sampling.temperature == 0) return static_cast<std::int32_t>(best - scores.begin());
  std::vector<double> shares;
  double total = 0;
  for (const float score : scores) {
    shares.push_back(std::exp((double{score} - double{*best}) / sampling.temperature));
    total += shares.back();
  }
  const RandomKey key{.seed = sampling.seed, .purpose = Purpose::Sampling, .sample = sample};
  double left = random_uniform(key, number) * total;
  for (std::size_t j = 0; j + 1 < shares.size(); ++j) {
    left -= shares[j];
    if (left < 0) return static_cast<std::int32_t>(j);
  }
  return static_cast<std::int32_t>(shares.size()) - 1;
}

/// Every token a slice behind the prompt, all samples side by side.
Program program_of(int stages, int samples, int slices) {
  Program program;
  program.name = "generate";
  program.shape.ranks = stages;
  program.shape.micro_batches = samples;
  program.shape.slices = slices;
  program.shape.forward_only = true;
  program.shape.placement = Placement::straight(stages);
  program.ranks.resize(static_cast<std::size_t>(stages));
  for (int slice = 0; slice < slices; ++slice)
    for (int sample = 0; sample < samples; ++sample)
      for (int stage = 0; stage < stages; ++stage) {
        Action action;
        action.stage = Stage{stage};
        action.micro_batch = MicroBatch{sample};
        action.slice = Slice{slice};
        program.ranks[static_cast<std::size_t>(stage)].push_back(action);
      }
  return program;
}

/// What one run of the program reads and gives.
/// Thread-safety: the first stage's thread asks for inputs while the last one's gives tokens.
class Continuation : public StepData {
 public:
  /// `sequences`: of every sample, from the window's first token on; they grow.
  Continuation(std::vector<std::vector<std::int32_t>>& sequences,
               std::size_t begin,
               std::size_t prompt,
               const Sampling& sampling)
      : sequences_(sequences), begin_(begin), prompt_(prompt), sampling_(sampling) {}

  TensorList inputs(const Unit& unit) override {
    const auto& sequence = sequences_[unit.micro_batch.index()];
    const bool first = unit.slice.value == 0;
    const std::size_t count = first ? prompt_ : 1;
    const auto from = begin_ + static_cast<std::size_t>(first_position(unit));
    std::unique_lock lock(mutex_);
    if (!grown_.wait_for(lock, kPatience, [&] { return sequence.size() >= from + count; }))
      throw Error("the last stage gave no token for " + std::to_string(kPatience.count()) +
                  " seconds");
    Tensor tokens(DType::I32, {1, static_cast<std::int64_t>(count)});
    std::copy_n(sequence.begin() + static_cast<std::ptrdiff_t>(from),
                count,
                tokens.as<std::int32_t>().begin());
    return TensorList(std::move(tokens));
  }

  TensorList targets(const Unit&) override { return {}; }
  [[nodiscard]] std::int64_t first_sample(const Unit& unit) const override {
    return unit.micro_batch.value;
  }
  [[nodiscard]] std::int64_t first_position(const Unit& unit) const override {
    return unit.slice.value == 0 ? 0 : static_cast<std::int64_t>(prompt_) + unit.slice.value - 1;
  }

  void predicted(const Unit& unit, const TensorList& outputs) override {
    const Tensor& scores = outputs[0];
    const auto words = static_cast<std::size_t>(scores.dims()[scores.dims().size() - 1]);
    const auto known =
        sampling_.words == 0 ? words : std::min(words, static_cast<std::size_t>(sampling_.words));
    const auto last = scores.as<float>().last(words).first(known);
    auto& sequence = sequences_[unit.micro_batch.index()];
    const std::lock_guard lock(mutex_);
    sequence.push_back(drawn(last,
                             sampling_,
                             static_cast<std::uint32_t>(unit.micro_batch.value),
                             static_cast<std::uint32_t>(sequence.size())));
    grown_.notify_all();
  }

 private:
  std::vector<std::vector<std::int32_t>>& sequences_;
  std::size_t begin_;
  std::size_t prompt_;
  const Sampling& sampling_;
  std::mutex mutex_;  // guards the sequences
  std::condition_variable grown_;
};

/// As layers read it: rounded to what they hold it in.
void take(Parameter& parameter, const Tensor& value) {
  require(value.dtype() == parameter.value.dtype() && value.dims() == parameter.value.dims(), [&] {
    return "'" + parameter.name + "' is " + name_of(value.dtype()) + " " + to_string(value.dims()) +
           ", the model has " + name_of(parameter.value.dtype()) + " " +
           to_string(parameter.value.dims());
  });
  std::memcpy(parameter.value.data(), value.data(), value.bytes());
  if (is_narrow(parameter.precision)) round_to(parameter.precision, parameter.value.as<float>());
}

void check(const Sampling& sampling, std::span<const std::int32_t> prompt, std::int64_t words) {
  require(sampling.tokens >= 1 && sampling.samples >= 1,
          "at least 1 token of at least 1 sample must be asked for, got " +
              std::to_string(sampling.tokens) + " of " + std::to_string(sampling.samples));
  require(sampling.temperature >= 0 && std::isfinite(sampling.temperature),
          "the temperature must be at least 0, got " + std::to_string(sampling.temperature));
  require(sampling.words >= 0 && sampling.words <= words, [&] {
    return "tokens are drawn from the first " + std::to_string(sampling.words) +
           ", the model knows " + std::to_string(words);
  });
  require(!prompt.empty(), "a prompt has at least 1 token");
  for (const std::int32_t token : prompt)
    require(token >= 0 && token < words, [&] {
      return "token " + std::to_string(token) + " of the prompt is outside 0.." +
             std::to_string(words - 1);
    });
}

}  // namespace

struct Generator::State {
  /// Tokens behind sequences of `length`, as many as the context has room for and are wanted.
  void extend(std::vector<std::vector<std::int32_t>>& sequences,
              std::size_t wanted,
              const Sampling& sampling) {
    const std::size_t length = sequences.front().size();
    const auto context = static_cast<std::size_t>(model.context);
    const std::size_t prompt = length < context ? length : std::max<std::size_t>(1, context / 2);
    const auto slices = static_cast<int>(std::min(wanted, context - prompt + 1));
    Program program = program_of(static_cast<int>(bodies.size()), sampling.samples, slices);
    program.shape.edges = edges;
    const auto executor = make_executor(
        bodies.size() == 1 ? ExecutorKind::Sequential : ExecutorKind::Ranks, program, hosted, {});
    Continuation data(sequences, length - prompt, prompt, sampling);
    StepSettings settings;
    settings.training = false;
    settings.deadline = kPatience;
    static_cast<void>(executor->run(data, settings));
  }

  ModelSpec model;
  std::vector<std::unique_ptr<StageModule>> bodies;
  std::vector<HostedStage> hosted;
  std::vector<StageEdge> edges;
};

Generator::Generator(const ModelSpec& model, int stages, const Weights& weights)
    : state_(std::make_unique<State>()) {
  require(model.context > 0, "a model of sequences generates text, such as gpt:");
  state_->model = model;
  const std::vector<int> boundaries = even_boundaries(model, stages);
  for (const CutEdge& edge : cut_edges(model, boundaries))
    state_->edges.push_back({Stage{edge.from}, edge.output, Stage{edge.to}, edge.input});
  state_->bodies = build_stages(model, boundaries, 0);
  for (int stage = 0; stage < stages; ++stage) {
    StageModule& body = *state_->bodies[static_cast<std::size_t>(stage)];
    for (Parameter* parameter : body.parameters()) take(*parameter, weights(parameter->name));
    state_->hosted.push_back({Replica{0}, Stage{stage}, &body});
  }
}

Generator::~Generator() = default;

std::vector<std::vector<std::int32_t>> Generator::generate(std::span<const std::int32_t> prompt,
                                                           const Sampling& sampling) {
  check(sampling, prompt, state_->model.output_columns());
  std::vector<std::vector<std::int32_t>> sequences(static_cast<std::size_t>(sampling.samples),
                                                   {prompt.begin(), prompt.end()});
  const std::size_t end = prompt.size() + static_cast<std::size_t>(sampling.tokens);
  for (auto& sequence : sequences) sequence.reserve(end);
  while (sequences.front().size() < end)
    state_->extend(sequences, end - sequences.front().size(), sampling);
  for (auto& sequence : sequences)
    sequence.erase(sequence.begin(), sequence.begin() + std::ssize(prompt));
  return sequences;
}

}  // namespace millrace
