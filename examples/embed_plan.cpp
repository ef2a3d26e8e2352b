// For framework builders: uses the component plan alone (target millrace::plan) with custom stages.
// A schedule is generated, verified, simulated and lowered to sends and receives; the forty lines
// below execute it without any knowledge of schedules.
#include <iostream>
#include <map>
#include <millrace/scheduler/plan.hpp>
#include <string>
#include <variant>

namespace {

using namespace millrace;

/// A framework's own runtime: a mailbox per message and one number per activation.
class FakeRuntime {
 public:
  explicit FakeRuntime(int last_stage) : last_stage_(last_stage) {}

  /// Whether `action` can run now: a receive needs its message.
  [[nodiscard]] bool ready(const Action& action) const {
    return !is_receive(action.op) || mailbox_.contains(message_of(action));
  }

  void execute(const Action& action) {
    const int stage = action.stage.value;
    const int unit = action.micro_batch.value;
    switch (action.op) {
      case Op::Forward:
        activation_[{stage + 1, unit}] = (stage == 0 ? unit : activation_[{stage, unit}]) + 1;
        break;
      case Op::BackwardInput:
        gradient_[{stage - 1, unit}] = (stage == last_stage_ ? 1 : gradient_[{stage, unit}]) * 2;
        break;
      case Op::BackwardWeight:
        weight_gradient[stage] += activation_[{stage + 1, unit}];
        break;
      case Op::SendForward:
        mailbox_[message_of(action)] = activation_[{stage + 1, unit}];
        break;
      case Op::SendBackward:
        mailbox_[message_of(action)] = gradient_[{stage - 1, unit}];
        break;
      case Op::RecvForward:
        activation_[{stage, unit}] = mailbox_.extract(message_of(action)).mapped();
        break;
      case Op::RecvBackward:
        gradient_[{stage, unit}] = mailbox_.extract(message_of(action)).mapped();
        break;
      default:
        break;
    }
  }

  std::map<int, int> weight_gradient;

 private:
  using Key = std::pair<int, int>;

  /// A send and its receive name the same message: "F" or "B", the receiving stage, the
  /// micro-batch.
  static std::string message_of(const Action& action) {
    const bool forward = action.op == Op::SendForward || action.op == Op::RecvForward;
    const int to =
        is_receive(action.op) ? action.stage.value : action.stage.value + (forward ? 1 : -1);
    return (forward ? "F" : "B") + std::to_string(to) + ":" +
           std::to_string(action.micro_batch.value);
  }

  int last_stage_;
  std::map<Key, int> activation_, gradient_;
  std::map<std::string, int> mailbox_;
};

/// Runs every rank's list in order, one action of each rank in turn.
void drive(const Program& program, FakeRuntime& runtime) {
  std::vector<std::size_t> next(program.ranks.size(), 0);
  for (std::size_t done = 0; done < program.size();) {
    for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
      const auto& list = program.ranks[rank];
      if (next[rank] == list.size() || !runtime.ready(list[next[rank]])) continue;
      runtime.execute(list[next[rank]++]);
      ++done;
    }
  }
}

}  // namespace

int main() {
  const Program compute = generate("zb-h1", {.ranks = 4, .micro_batches = 8});
  const Program lowered = insert_messages(compute);
  const auto violations = verify(lowered, Transport::rendezvous());
  std::cout << "valid under rendezvous: "
            << (violations.empty() ? "yes" : violations.front().message) << '\n';

  const Graph graph(compute);
  const Cost cost = Cost::unit(compute.shape);
  const auto timeline = std::get<Timeline>(simulate(graph, cost));
  const Report figures = report(graph, cost, timeline);
  std::cout << "makespan " << figures.makespan << ", bubble " << figures.bubble_makespan << '\n';

  FakeRuntime runtime(compute.shape.stages() - 1);
  drive(lowered, runtime);
  for (const auto& [stage, sum] : runtime.weight_gradient)
    std::cout << "stage " << stage << ": " << sum << '\n';
  return violations.empty() ? 0 : 1;
}
