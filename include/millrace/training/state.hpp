// The state of a training besides its options and data: weights, gradients, optimizer state and
// counters by global name, and the hash of the weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/core/ids.hpp"
#include "millrace/scheduler/run/executor.hpp"
#include "millrace/scheduler/run/grid.hpp"
#include "millrace/stages/stage.hpp"
#include "millrace/training/loader.hpp"
#include "millrace/training/loss_scale.hpp"
#include "millrace/training/optimizer.hpp"
#include "millrace/training/reports.hpp"
#include "millrace/transport/process_group.hpp"

namespace millrace {

/// An update that was stopped between two passes of the pipeline (StepOptions::accumulate): the
/// gradients hold sums over the first micro-batches of the mini-batch at
/// TrainingCounters::position.
struct PartialUpdate {
  std::int64_t micro_batches = 0;  ///< [0, micro_batches) are in the sums; 0: there is none
  std::int64_t copies = 1;         ///< of the model, each with sums of its own
  std::int64_t samples = 0;        ///< of those micro-batches
  LossSum loss = {};               ///< of those micro-batches

  friend bool operator==(const PartialUpdate& one, const PartialUpdate& other) {
    return one.micro_batches == other.micro_batches && one.copies == other.copies &&
           one.samples == other.samples && one.loss.sum == other.loss.sum &&
           one.loss.weight == other.loss.weight && one.loss.correct == other.loss.correct &&
           one.loss.evaluated == other.loss.evaluated;
  }
};

/// How far a training has come. Equal in all its processes.
struct TrainingCounters {
  std::int64_t global_step = 0;  ///< updates done; skipped steps do not count
  /// Mini-batches run, skipped ones included: it names the random numbers of the next one.
  std::int64_t mini_batches = 0;
  DataPosition position = {};  ///< of the mini-batch that fit() would run next
  std::uint64_t seed = 1;      ///< of shuffling and dropout
  std::int64_t skipped_in_a_row = 0;
  LossScale loss_scale = {};  ///< of the next step
  // Where the current fit began, which is at the beginning of the data: its steps and a learning
  // rate without total_updates count from here.
  std::int64_t fit_global_step = 0;
  std::int64_t fit_mini_batches = 0;
  PartialUpdate partial = {};        ///< of the mini-batch that fit() would run next
  ValidationRecord validation = {};  ///< of the current fit

  friend bool operator==(const TrainingCounters&, const TrainingCounters&) = default;
};

/// One copy of a parameter that this process hosts, with what belongs to it.
struct StateEntry {
  Parameter* parameter = nullptr;  ///< value and gradient
  /// The elements that this process' optimizer moves: all of them, or its share, in whole blocks of
  /// kNormBlock, where they are spread over the copies of a pipeline (ZeRO stage 1).
  std::size_t first = 0, last = 0;
  bool is_spread = false;
  /// The value that updates move, where the parameter's own is rounded to f16 or bf16; else empty.
  Tensor master;
  std::vector<Tensor> slots;  ///< the optimizer's arrays
  // Both of the value's shape, or of the share's length.
  Replica replica;  ///< of the stage, counted over all copies of the pipeline
  Stage stage;
  Rank rank;
  std::size_t number = 0;                   ///< of the name in TrainingState::names()
  double learning_rate_factor = 1;          ///< of its groups
  std::optional<double> weight_decay = {};  ///< of its groups, instead of the optimizer's
  bool counts = true;  ///< speaks for its weight in norms: first copy, first of those that are tied

  /// Moved by the optimizer; else a running statistic.
  [[nodiscard]] bool is_trained() const { return parameter->role == ParameterRole::Trained; }
  /// What training moves, hashes and saves: the master value (of a share where it is spread), or
  /// the parameter's own.
  [[nodiscard]] Tensor& value() { return master ? master : parameter->value; }
  [[nodiscard]] const Tensor& value() const { return master ? master : parameter->value; }
  /// Makes the parameter's own value, or its share, of the master value, if there is one. Cost:
  /// O(elements).
  void round_value();
};

/// State by global name, the same names whatever the cut. Every trained parameter has the parts
/// "value" and "gradient" and those that the optimizer keeps ("momentum"; "first_moment",
/// "second_moment"). In a model of f16 or bf16 "value" is the f32 master value; what layers see is
/// made of it by rounding, after every update and `write`. Running statistics have "value" and, for
/// what the current step adds to them, "gradient".
///
///     TrainingState& state = trainer.state();
///     for (const std::string& name : state.names()) averages[name].add(state.read(name));
///     state.write("layers.0.weight", values);
///     state.write("layers.0.weight", zeros, "first_moment");
///     state.freeze("layers.0.*");
///
/// A name may have several copies here (bidirectional schedules, tied weights): all have the same
/// contents, `read` gives one and `write` changes all. In a training of several processes each
/// reads and writes what it hosts, and writes everywhere alike what is copied or tied: whoever goes
/// through names() and asks hosts() does.
/// Thread-safety: externally synchronised, between two steps.
class TrainingState {
 public:
  /// Zero slots for every parameter of `stages`. A collective of the group, which must outlive
  /// this, as must the stages and the optimizer. Throws InvalidArgument when a name is empty, has
  /// several lines or is used twice, a parameter is not f32 or has not its gradient's
  /// shape, or a stage with copies has a statistic that takes micro-batches in order. `seat`: where
  /// in the grid this process sits; copies of a pipeline are copies like those of a stage.
  /// `spreads`: what the optimizer keeps of a stage, and master values, are spread over them.
  TrainingState(const Shape& shape,
                std::span<const HostedStage> stages,
                const Optimizer& optimizer,
                const std::vector<std::vector<std::string>>& tied,
                ProcessGroup& group,
                const GridPosition& seat = {},
                bool spreads = false);
  TrainingState(const TrainingState&) = delete;
  TrainingState& operator=(const TrainingState&) = delete;
  ~TrainingState();

  /// All parameters of all processes, ascending. Cost: O(1), as of all that follows but `write`,
  /// `freeze` and `set`; looking up a name O(log n).
  [[nodiscard]] std::span<const std::string> names() const;
  /// Whether this process hosts the parameter. Throws InvalidArgument for a name that no process
  /// has, naming the nearest.
  [[nodiscard]] bool hosts(std::string_view name) const;
  /// Moved by the optimizer; else a running statistic. Throws as hosts.
  [[nodiscard]] bool is_trained(std::string_view name) const;
  /// "value", "gradient", and the optimizer's slots, which running statistics do not have; the
  /// second throws as hosts.
  [[nodiscard]] std::span<const std::string> parts() const;
  [[nodiscard]] std::span<const std::string> parts(std::string_view name) const;

  /// Whether this process has no more of that part than a share. Throws as read.
  [[nodiscard]] bool is_spread(std::string_view name, std::string_view part) const;

  /// Bytes of the optimizer's arrays and of master values in this process, and of one rank of those
  /// here.
  [[nodiscard]] std::size_t optimizer_bytes() const;
  [[nodiscard]] std::size_t optimizer_bytes(Rank rank) const;

  /// Valid until the next step or write. Throws InvalidArgument for a name or part that does not
  /// exist, naming the nearest, for a parameter that another process hosts, and for a part that is
  /// spread.
  [[nodiscard]] const Tensor& read(std::string_view name, std::string_view part = "value") const;

  /// Copies `contents` into all copies here, and into all that is tied to them. Throws as read, and
  /// when dtype or shape differ; the second form, when the number of elements does. Cost:
  /// O(elements x copies).
  void write(std::string_view name, const Tensor& contents, std::string_view part = "value");
  void write(std::string_view name,
             std::span<const float> contents,
             std::string_view part = "value");

  /// Freezes (or frees) the parameters with these names, `*` for any run of characters, in every
  /// copy, with those they are tied to. In every process alike. Throws InvalidArgument when no
  /// parameter of any process is called so, naming the nearest.
  void freeze(std::string_view pattern, bool frozen = true);
  [[nodiscard]] bool frozen(std::string_view name) const;

  /// Gives the parameters of a group the settings that it says, in every copy, with those they are
  /// tied to. In every process alike. Throws as freeze, and when a number is out of its range.
  void set(const ParameterGroup& group);

  [[nodiscard]] const TrainingCounters& counters() const;
  /// In every process alike. Throws InvalidArgument for a negative one.
  void set_counters(const TrainingCounters& counters);

  /// Of the program.
  [[nodiscard]] int ranks() const;
  /// All copies that live on a rank, in the order of its stages' parameters; none where the rank is
  /// another process.
  [[nodiscard]] std::span<StateEntry> entries(Rank rank);
  [[nodiscard]] std::span<const StateEntry> entries(Rank rank) const;
  /// One copy of every trained parameter hosted here, by name.
  [[nodiscard]] std::span<Parameter* const> parameters() const;

 private:
  [[nodiscard]] const Tensor& shape_of(std::string_view name, std::string_view part) const;

  struct Contents;
  std::unique_ptr<Contents> contents_;
};

/// xxh3-128 of the bytes, as 32 hexadecimal digits. Cost: O(bytes).
[[nodiscard]] std::string bytes_digest(std::span<const std::byte> bytes);

/// xxh3-128 of a tensor's bytes, as 32 hexadecimal digits. Cost: O(bytes).
[[nodiscard]] std::string tensor_digest(const Tensor& tensor);

/// xxh3-128 over the names and digests of parameters in ascending order of name, each with a line
/// end, as 32 hexadecimal digits. Processes exchange digests, not weights.
[[nodiscard]] std::string combine_digests(const std::map<std::string, std::string>& digest_of);

/// combine_digests over the values of `parameters`, whatever their order: the `weights_hash` of a
/// model. Throws InvalidArgument when two have one name.
[[nodiscard]] std::string weights_hash(std::span<Parameter* const> parameters);

}  // namespace millrace
