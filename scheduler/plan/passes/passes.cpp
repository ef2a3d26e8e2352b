// The passes that rewrite one rank's list at a time.
#include "millrace/scheduler/plan/passes.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "millrace/core/error.hpp"

namespace millrace {

namespace {

/// The program with every rank's list replaced by rewrite(list).
template <class Rewrite>
Program rewritten(Program program, Rewrite&& rewrite) {
  for (auto& list : program.ranks) list = rewrite(std::move(list));
  return program;
}

Action with_op(Action action, Op op) {
  action.op = op;
  return action;
}

/// Appends I and W for B. The first half of a pair stays next to its other half: the W of a B that
/// leads a pair follows the pair.
std::vector<Action> split_list(const std::vector<Action>& list) {
  std::vector<Action> result;
  std::vector<Action> owed;  // the W of a B that leads a pair
  for (const Action& action : list) {
    const bool split = action.op == Op::Backward;
    result.push_back(split ? with_op(action, Op::BackwardInput) : action);
    if (split) {
      owed.push_back(with_op(action, Op::BackwardWeight));
      owed.back().with_next = false;
    }
    if (action.with_next) continue;
    result.insert(result.end(), owed.begin(), owed.end());
    owed.clear();
  }
  result.insert(result.end(), owed.begin(), owed.end());
  return result;
}

std::vector<Action> merge_list(const std::vector<Action>& list) {
  std::vector<Action> result;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Action& action = list[i];
    const bool own_weight = action.op == Op::BackwardInput && !action.with_next &&
                            i + 1 < list.size() && !list[i + 1].with_next &&
                            list[i + 1] == with_op(action, Op::BackwardWeight);
    result.push_back(own_weight ? with_op(action, Op::Backward) : action);
    if (own_weight) ++i;
  }
  return result;
}

}  // namespace

Program split_backward(Program program) {
  return rewritten(std::move(program), split_list);
}

Program merge_backward(Program program) {
  return rewritten(std::move(program), merge_list);
}

Program decouple_pairs(Program program) {
  return rewritten(std::move(program), [](std::vector<Action> list) {
    for (Action& action : list) action.with_next = false;
    return list;
  });
}

Program compute_only(Program program) {
  return rewritten(std::move(program), [](const std::vector<Action>& list) {
    std::vector<Action> result;
    std::copy_if(list.begin(), list.end(), std::back_inserter(result), [](const Action& action) {
      return is_compute(action.op) && action.op != Op::Recompute;
    });
    return result;
  });
}

Program insert_recompute(Program program, const std::function<bool(const Action&)>& wanted) {
  const bool has_recompute =
      std::any_of(program.ranks.begin(), program.ranks.end(), [](const std::vector<Action>& list) {
        return std::any_of(list.begin(), list.end(), [](const Action& action) {
          return action.op == Op::Recompute;
        });
      });
  if (has_recompute) return program;
  return rewritten(std::move(program), [&](const std::vector<Action>& list) {
    std::vector<Action> result;
    for (std::size_t i = 0; i < list.size(); ++i) {
      // A pair stays together: what its second half recomputes comes before the pair.
      const bool second_half = i > 0 && list[i - 1].with_next;
      for (std::size_t half = i; !second_half && half < list.size(); ++half) {
        if (gives_input_gradient(list[half].op) && wanted(list[half])) {
          result.push_back(with_op(list[half], Op::Recompute));
          result.back().with_next = false;
        }
        if (!list[half].with_next) break;
      }
      result.push_back(list[i]);
    }
    return result;
  });
}

Program insert_recompute(Program program) {
  return insert_recompute(std::move(program), [](const Action&) { return true; });
}

Program insert_recompute(Program program, const std::vector<bool>& of_stage) {
  require(static_cast<int>(of_stage.size()) == program.shape.stages(), [&] {
    return "recompute is said of " + std::to_string(of_stage.size()) + " stages; the program has " +
           std::to_string(program.shape.stages());
  });
  return insert_recompute(std::move(program), [&](const Action& action) {
    return action.stage.index() < of_stage.size() && of_stage[action.stage.index()];
  });
}

}  // namespace millrace
