// A custom schedule, written as a diagram of each rank's actions. It is verified before it runs,
// drawn, and trained with, to the same bits as a published one.
#include <iostream>
#include <millrace/millrace.hpp>
#include <variant>

namespace {

using namespace millrace;

// One row per rank, one cell per action: stage, F or B, micro-batch. Empty cells only align
// columns.
constexpr const char* kMine =
    "0F0, 0F1, 0F2, 0B0, 0F3, 0B1, 0B2, 0B3\n"
    "   , 1F0, 1B0, 1F1, 1B1, 1F2, 1B2, 1F3, 1B3\n";

// Rank 1 begins with micro-batch 1, whose forward pass rank 0 runs only after the backward pass of
// micro-batch 0.
constexpr const char* kHangs =
    "0F0, 0B0, 0F1, 0B1\n"
    "1F1, 1F0, 1B0, 1B1\n";

Program parsed(const char* text) {
  const ParsedProgram read = read_csv(text);
  if (!read.program) throw Error(to_string(read.diagnostics.front()));
  return *read.program;
}

void draw(const Program& program) {
  const Graph graph(program);
  const Cost cost = Cost::unit(program.shape);
  const auto timeline = std::get<Timeline>(simulate(graph, cost));
  std::cout << draw_ascii(program, timeline);
  std::cout << "makespan " << report(graph, cost, timeline).makespan << '\n';
}

std::string trained_with(const Program& program) {
  Trainer trainer(parse_model("mlp:64-32-10"), {program}, {.fit = {.epochs = 2}});
  trainer.fit(digits());
  return trainer.weights_hash();
}

}  // namespace

int main() {
  const Program mine = parsed(kMine);
  std::cout << "violations: " << verify(mine).size() << '\n';
  draw(mine);
  std::cout << "refused: " << verify(parsed(kHangs)).front().message << '\n';

  const Program published = generate("1f1b", {.ranks = 2, .micro_batches = 4});
  std::cout << "same weights as 1f1b: "
            << (trained_with(mine) == trained_with(published) ? "yes" : "no") << '\n';
}
