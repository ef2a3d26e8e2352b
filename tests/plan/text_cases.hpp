// What the tests of the two text forms share: a plan with everything, faults as text, and
// mutations.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "millrace/scheduler/plan/text.hpp"

namespace millrace {

/// All faults, one per line.
inline std::string faults(const std::vector<Diagnostic>& diagnostics) {
  std::string text;
  for (const Diagnostic& diagnostic : diagnostics) text += to_string(diagnostic) + "\n";
  return text;
}

/// A plan with everything the CSV lacks: replicas, slices, recompute, a step, a pair, boundaries.
inline Plan rich_plan() {
  Plan plan;
  Program& program = plan.program;
  program.name = "rich \"plan\"";
  program.shape.ranks = 2;
  program.shape.micro_batches = 2;
  program.shape.slices = 2;
  program.shape.placement = Placement::mirrored(2);
  program.shape.replica_of = {Replica{0}, Replica{1}};
  const auto act =
      [](Op op, int replica, int stage, int micro_batch, int slice, bool pair = false) {
        return Action{op,
                      pair,
                      static_cast<std::uint8_t>(replica),
                      0,
                      Stage{stage},
                      MicroBatch{micro_batch},
                      Slice{slice}};
      };
  program.ranks = {{act(Op::Forward, 0, 0, 0, 0),
                    act(Op::Forward, 0, 0, 0, 1, true),
                    act(Op::BackwardInput, 1, 1, 1, 1),
                    act(Op::Recompute, 0, 0, 0, 0),
                    act(Op::OptimizerStep, 0, 0, 0, 0)},
                   {act(Op::Forward, 1, 0, 1, 0), act(Op::ReduceGrad, 1, 0, 0, 0)}};
  plan.boundaries = {5};
  return plan;
}

/// A bounded campaign with the seed in the text; tests/fuzz has the open-ended one.
template <class Read>
void mutate(const std::string& original, const std::string& alphabet, Read read) {
  std::mt19937 random(20240917);
  for (int round = 0; round < 2000; ++round) {
    std::string text = original;
    const auto edits = 1 + random() % 4;
    for (unsigned edit = 0; edit < edits && !text.empty(); ++edit) {
      const std::size_t at = random() % text.size();
      const char byte = random() % 8 == 0 ? static_cast<char>(random() % 256)
                                          : alphabet[random() % alphabet.size()];
      switch (random() % 4) {
        case 0:
          text[at] = byte;
          break;
        case 1:
          text.insert(at, 1, byte);
          break;
        case 2:
          text.erase(at, 1 + random() % 3);
          break;
        default:
          text += text.substr(at, random() % 40);
      }
    }
    read(text);
  }
}

}  // namespace millrace
