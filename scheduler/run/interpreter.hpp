// Interpreter: the only code that gives an action its effect. Executors choose threads and order;
// what F, B, SEND or REDUCE_GRAD means is decided here, once, for all of them.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "millrace/scheduler/run/executor.hpp"
#include "millrace/scheduler/run/grid.hpp"
#include "millrace/transport/endpoint.hpp"

namespace millrace {

namespace run {
struct Instruction;
}  // namespace run

/// Executes single actions of a program: keeps the values between them (inputs of a stage and
/// gradients of its outputs, per unit), hands them to the stage bodies, and moves them over an
/// endpoint.
///
/// Without an endpoint all ranks of the program live in this process and share the values; a send
/// or receive then has no effect of its own (its place in the order is what it is good for). With
/// an endpoint only the actions of this process's place can be executed; peers are places too, and
/// the position says which processes they are.
///
/// What an action does:
/// - F takes the unit's inputs (first stage: from StepData), the last stage also the targets and a
///   LossSum; the outputs become the inputs of the next stage. In evaluation the last stage's
///   outputs go to the result.
/// - B and I take the gradients of the outputs and leave those of the inputs to the stage before.
/// - W and recompute call the body and move nothing.
/// - SEND takes a value and gives it to the endpoint; RECV is the reverse.
/// - REDUCE_GRAD adds the gradients of a stage's copies in replica order, then those of the
///   weights tied to its own in the order of the layers, each in its own type, and gives every copy
///   and every tied weight the same sum. Over an endpoint a copy's gradients leave right after its
///   last B or W, so that a rank waits for exactly what the graph says it waits for. Of a step of
///   several passes only the last one does this: until then every copy keeps its own sum. Where
///   the position's grid has several data-parallel replicas, theirs are added first, in the order
///   that the settings say: from a stage's last B or W to its REDUCE_GRAD, and right there where it
///   has none or other places wait for it. With HostedStage::shares a copy gets the sums of its
///   share.
/// - STEP has no effect: the optimizer runs after the program, through Executor::for_each_rank.
///
/// No action allocates once the pools and mailboxes have grown, also over ranks in one process or
/// over shared memory (lists of a tree of sums and of reductions excepted, and what ZeroMQ and MPI
/// need for a message). Thread-safety: `execute` from any thread, for different ranks
/// at the same time; the caller makes sure that an action starts after everything Graph says it
/// waits for. The rest: externally synchronised.
class Interpreter {
 public:
  /// `program`, the bodies and the position's endpoint must outlive the interpreter. Calls
  /// `reserve` of every body. `threads_per_rank`: see ExecutorOptions. Throws InvalidArgument when
  /// a stage of a rank that runs here has no body, or two.
  Interpreter(const Program& program,
              std::span<const HostedStage> stages,
              const GridPosition& position = {},
              int threads_per_rank = 1);
  Interpreter(const Program&& program,
              std::span<const HostedStage> stages,
              const GridPosition& position = {},
              int threads_per_rank = 1) = delete;
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;
  ~Interpreter();

  /// Whether the rank's actions are executed here.
  [[nodiscard]] bool hosts(Rank rank) const;

  /// Replaces the endpoint, between steps, after the old one was cancelled or lost. Throws
  /// InvalidArgument when there was none or it was of another rank.
  void use(Endpoint& endpoint);

  /// Starts a step. `data` must stay valid until the step has ended. Throws InvalidArgument when
  /// the settings and the program disagree about training.
  void begin_step(StepData& data, const StepSettings& settings);

  /// Gives action `position` of `rank` its effect. Throws StepError for any failure inside,
  /// the cause nested; Cancelled as it is when another rank ended a wait.
  void execute(Rank rank, std::size_t position);

  /// The action looked up once, for executors that execute it in every step; valid as long as the
  /// interpreter. The second form of `execute` is the first without the look-up.
  [[nodiscard]] const run::Instruction& compiled(Rank rank, std::size_t position) const;
  void execute(const run::Instruction& instruction);

  /// Ends the step: checks that every value was consumed, every stash is empty and all counted
  /// bytes were given back (throws Error naming what was left, after dropping it), and returns
  /// losses, outputs and peaks of the ranks that run here.
  [[nodiscard]] StepResult end_step();

  /// Drops all values and stashes after a failure.
  void abandon_step() noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace millrace
