// Hand-made programs for tests of the plan: an action from its text, lists from lines, and 1F1B
// written out directly.
#pragma once

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/program.hpp"

namespace millrace::testing_plan {

/// "2SEND_F3" or "1I2" or "0REDUCE_GRAD"; "3F7.1" names slice 1, "3'F7" replica 1, a trailing "+"
/// the first half of a pair.
inline Action action(std::string text) {
  Action result;
  if (text.back() == '+') {
    result.with_next = true;
    text.pop_back();
  }
  std::istringstream in(text);
  in >> result.stage.value;
  if (in.peek() == '\'') {
    in.get();
    result.replica_number = 1;
  }
  std::string name;
  while (in.peek() == '_' || (in.peek() >= 'A' && in.peek() <= 'Z'))
    name += static_cast<char>(in.get());
  for (int op = 0; op < kOps; ++op)
    if (letters(static_cast<Op>(op)) == name) result.op = static_cast<Op>(op);
  require(letters(result.op) == name, "no op is called " + name);
  if (has_unit(result.op)) in >> result.micro_batch.value;
  if (in.peek() == '.') {
    in.get();
    in >> result.slice.value;
  }
  return result;
}

/// One list per line of space-separated actions.
inline Program program(const Shape& shape, const std::vector<std::string>& lines) {
  Program result{shape, {}, "by hand"};
  for (const std::string& line : lines) {
    auto& list = result.ranks.emplace_back();
    std::istringstream in(line);
    for (std::string word; in >> word;) list.push_back(action(word));
  }
  return result;
}

/// The lists as text, one line per rank, as `program` reads them.
inline std::vector<std::string> lines(const Program& program) {
  std::vector<std::string> result;
  for (const auto& list : program.ranks) {
    std::string line;
    for (const Action& each : list)
      line += (line.empty() ? "" : " ") + to_string(each) + (each.with_next ? "+" : "");
    result.push_back(line);
  }
  return result;
}

inline Shape straight(int ranks, int micro_batches) {
  return {ranks, micro_batches, 1, Placement::straight(ranks), {}, false};
}

/// 1F1B: rank r runs min(p-1-r, m) forwards ahead, then alternates.
inline Program one_f_one_b(int ranks, int micro_batches) {
  Program result{straight(ranks, micro_batches), {}, "1f1b"};
  for (int r = 0; r < ranks; ++r) {
    auto& list = result.ranks.emplace_back();
    list.reserve(2 * static_cast<std::size_t>(micro_batches));
    const int ahead = std::min(ranks - 1 - r, micro_batches);
    for (int i = 0; i < micro_batches + ahead; ++i) {
      if (i < micro_batches)
        list.push_back({Op::Forward, false, 0, 0, Stage{r}, MicroBatch{i}, {}});
      if (i >= ahead)
        list.push_back({Op::Backward, false, 0, 0, Stage{r}, MicroBatch{i - ahead}, {}});
    }
  }
  return result;
}

}  // namespace millrace::testing_plan
