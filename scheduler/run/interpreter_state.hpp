// What the interpreter prepares before the first step, so that an action costs one table look-up:
// every action compiled into the body it calls and the slots it takes from and fills.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "run/executors.hpp"
#include "run/gradients.hpp"
#include "run/interpreter.hpp"
#include "run/values.hpp"

namespace millrace::run {

struct RankState;

/// The message of a SEND or RECV: the process at the other end, and the tag but for what a step
/// sets: its number, and the micro-batch in it.
struct PeerMessage {
  Rank process;
  MessageTag tag;
};

/// One action, compiled; a cache line, so that an action reads one.
struct alignas(64) Instruction {
  StageBody* body = nullptr;
  RankState* at = nullptr;
  const Action* action = nullptr;
  Reduction* reduction = nullptr;  ///< of REDUCE_GRAD, and of the last B or W before it
  MicroBatch micro_batch;
  Slice slice;
  std::uint32_t source = ValueSlots::kNone;  ///< slot that is taken
  std::uint32_t target = ValueSlots::kNone;  ///< slot that is filled
  std::uint32_t unit = 0;                    ///< micro_batch * slices + slice
  std::uint32_t counts = 0;                  ///< which of State::counts
  std::uint32_t message = 0;                 ///< of SEND and RECV: which of RankState::messages
  std::uint16_t sink = 0;                    ///< of a stage with a loss: which of the graph's
  Op op = Op::Forward;
  bool first_stage : 1 = false;
  bool has_loss : 1 = false;
  bool recompute_later : 1 = false;
  bool publishes : 1 =
      false;  ///< last B or W of a stage that is reduced with others elsewhere: send
  bool ends_stage : 1 = false;        ///< last B or W of its stage
  bool ends_unit : 1 = false;         ///< last pass that may look at the targets
  bool whole_backward : 1 = false;    ///< the body does not split: I is all of it, W nothing
  bool gradient_per_use : 1 = false;  ///< the body adds the gradients of an output's uses itself
};

static_assert(sizeof(Instruction) == 64);

/// One rank that runs here. Separate cache lines: ranks run at the same time.
struct alignas(64) RankState {
  Rank rank;
  std::vector<Instruction> instructions;  ///< aligned with the rank's program
  std::vector<PeerMessage> messages;      ///< none without an endpoint
  StashMeter meter;
  StashMeter sums;  ///< of trees of sums, over all passes of a step
  TensorPool pool;
  std::unique_ptr<Workers> workers;  ///< null: the rank's thread alone
};

}  // namespace millrace::run

namespace millrace {

struct Interpreter::State {
  State(const Program& of_program,
        std::span<const HostedStage> hosted,
        const GridPosition& of_process);

  /// Of `targets` and `losses`.
  [[nodiscard]] std::size_t of_sink(const run::Instruction& instruction) const {
    return instruction.sink * empty.size() + instruction.unit;
  }
  [[nodiscard]] bool is_main(const run::Instruction& instruction) const {
    return instruction.sink + 1U == graph.sinks();
  }
  [[nodiscard]] PassContext context(const run::Instruction& instruction) const;
  [[nodiscard]] PassContext backward_context(const run::Instruction& instruction,
                                             LossSum& ignored) const;
  [[nodiscard]] TensorList gradients_for(const run::Instruction& instruction);
  void give_gradients(const run::Instruction& instruction, TensorList gradients);
  void perform(const run::Instruction& instruction);
  void forward(const run::Instruction& instruction);
  void give_outputs(const run::Instruction& instruction, TensorList given);
  void backward(const run::Instruction& instruction);
  void add_backward(const run::Instruction& instruction);
  void begin_sums();
  [[nodiscard]] int leaf_of(MicroBatch micro_batch) const;
  void send(const run::Instruction& instruction);
  void receive(const run::Instruction& instruction);
  void make_all_reduces();
  [[nodiscard]] std::vector<bool> needed_whole(const HostedStage& hosted) const;
  void add_copies(const run::Instruction& instruction);
  void go_on_with_sums(TensorPool& pool);
  void publish(const run::Instruction& instruction) const;
  void reduce(run::RankState& at, run::Reduction& reduction) const;
  void check_nothing_left() const;
  void drop() noexcept;
  [[nodiscard]] TensorList targets_for(const run::Instruction& instruction);
  [[nodiscard]] TensorList inputs_for(const run::Instruction& instruction);
  [[nodiscard]] bool takes_all_it_gives() const;

  [[nodiscard]] Deadline deadline() const {
    return std::chrono::steady_clock::now() + settings.deadline;
  }

  void compile_messages(run::RankState& at) const;
  [[nodiscard]] MessageTag tag_of(const run::PeerMessage& message) const;
  [[nodiscard]] std::string failure_text(const Action& action,
                                         Rank rank,
                                         const std::string& cause) const;

  /// Whether the gradients are complete when this pass has ended.
  [[nodiscard]] bool is_last_pass() const { return settings.pass + 1 == settings.passes; }

  const Program& program;
  GridPosition position;
  std::vector<HostedStage> stages;  ///< of the ranks that run here
  std::vector<std::unique_ptr<run::RankState>> ranks;
  std::vector<std::unique_ptr<run::Reduction>> reductions;
  std::vector<std::unique_ptr<run::GradientTree>> trees;  ///< [replica * stages + stage]
  std::vector<std::unique_ptr<run::GradientAllReduce>>
      all_reduces;  ///< likewise; none without other copies
  const StageGraph graph;
  run::SlotMap map;
  const run::Wiring wiring;  ///< unless the graph is a chain
  run::ValueSlots values;
  std::vector<run::TensorCounts> counts;  ///< [replica * stages + stage]
  bool balanced = false;  ///< every slot is filled as often as taken: a whole step leaves none full

  StepData* data = nullptr;
  StepSettings settings;
  PassContext of_step;  ///< what the contexts of all passes of the step have in common
  std::vector<std::int64_t> first_samples;    ///< by unit
  std::vector<std::int64_t> first_positions;  ///< by unit
  std::vector<bool> empty;                    ///< by unit
  std::vector<TensorList> targets;            ///< by sink and unit
  std::vector<LossSum> losses;                ///< by sink and unit
  std::vector<std::int64_t> rows;             ///< by unit, of the first stage's first input
  std::vector<TensorList> outputs;            ///< by unit, evaluation only
};

}  // namespace millrace
