// Graph: what it refuses to be built from.
#include "millrace/scheduler/plan/graph.hpp"

#include <type_traits>

#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"

namespace millrace {
namespace {

// A graph looks at its program for as long as it lives: Graph(generate(...)) would dangle.
static_assert(std::is_constructible_v<Graph, const Program&>);
static_assert(!std::is_constructible_v<Graph, Program>);
static_assert(!std::is_constructible_v<Graph, const Program>);
static_assert(!std::is_constructible_v<Graph, Program, std::span<const TiedGroup>>);

TEST(Graph, HasANodeForEveryActionOfItsProgram) {
  const Program program = generate("zb-h1", {.ranks = 3, .micro_batches = 5});
  const Graph graph(program);

  EXPECT_EQ(graph.size(), program.size());
  EXPECT_EQ(&graph.program(), &program);
}

}  // namespace
}  // namespace millrace
