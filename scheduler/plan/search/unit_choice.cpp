// Walks a rank's memory and changes the choice where it is short.
#include "plan/search/unit_choice.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "millrace/scheduler/plan/passes.hpp"
#include "plan/schedules/list_order.hpp"

namespace millrace::plan {

UnitChoice::UnitChoice(const Program& program, const Cost& cost, Work* work)
    : kept_(compute_only(program), cost, work),
      again_(insert_recompute(compute_only(program)), cost, work),
      job_(program, cost, work),
      unit_(job_.size(), kNoNode) {
  std::map<std::tuple<int, Stage, Unit>, Node> forwards;
  const auto key = [&](Node node) {
    const Action& action = job_.action(node);
    return std::tuple(int{action.replica_number}, action.stage, action.unit());
  };
  for (Node node = 0; node < job_.size(); ++node)
    if (job_.action(node).op == Op::Forward) forwards[key(node)] = node;
  for (Node node = 0; node < job_.size(); ++node) {
    if (!gives_input_gradient(job_.action(node).op)) continue;
    unit_[node] = forwards.at(key(node));
    unit_[unit_[node]] = node;
  }
}

void UnitChoice::choose(Node backward, bool again) {
  const Job& like = again ? again_ : kept_;
  job_.price_like(like, backward);
  job_.price_like(like, unit_[backward]);
  if (std::erase(open_, backward) == 0) open_.push_back(backward);
}

void UnitChoice::undo() {
  while (!open_.empty()) choose(open_.back(), !job_.recomputes(open_.back()));
}

bool UnitChoice::make_room(
    const JobOrder& order, std::size_t rank, double limit, const Price& price, Node kept) {
  std::vector<Node> held;  // backwards to come whose activations are kept
  double level = 0;
  for (Node at = job_.first(rank); at < job_.first(rank + 1); ++at) {
    const Node node = order[at];
    if (unit_[node] != kNoNode) {
      const bool backward = gives_input_gradient(job_.action(node).op);
      const Node chosen = backward ? node : unit_[node];
      if (backward)
        std::erase(held, node);
      else if (chosen != kept && !job_.recomputes(chosen) && helps(chosen))
        held.push_back(chosen);
    }
    job_.spend(1);
    while (!within_limit(level + job_.room(node), limit)) {
      if (held.empty()) return false;
      job_.spend(held.size() + open_.size());
      const auto least = std::ranges::min_element(held, {}, price);
      const Node before = unit_[*least];
      if (before != node) level -= kept_.memory(before) - again_.memory(before);
      choose(*least, true);
      held.erase(least);
    }
    level += job_.memory(node);
  }
  return true;
}

void UnitChoice::give_back(const JobOrder& order, double limit) {
  for (const Node node : order) {
    if (!job_.recomputes(node)) continue;
    choose(node, false);
    job_.spend(job_.first(job_.rank(node) + 1) - job_.first(job_.rank(node)));
    if (!within_limit(job_.peak(order, job_.rank(node)), limit)) choose(node, true);
  }
  open_.clear();
}

}  // namespace millrace::plan
