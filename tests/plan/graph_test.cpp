// Graph: what it refuses to be built from, and which needs are edges.
#include "millrace/scheduler/plan/graph.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <type_traits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"

namespace millrace {
namespace {

// A graph looks at its program for as long as it lives: Graph(generate(...)) would dangle.
static_assert(std::is_constructible_v<Graph, const Program&>);
static_assert(!std::is_constructible_v<Graph, Program>);
static_assert(!std::is_constructible_v<Graph, const Program>);

TEST(Graph, HasANodeForEveryActionOfItsProgram) {
  const Program program = generate("zb-h1", {.ranks = 3, .micro_batches = 5});
  const Graph graph(program);

  EXPECT_EQ(graph.size(), program.size());
  EXPECT_EQ(&graph.program(), &program);
}

/// The edges of a graph, "consumer <- producer".
std::multiset<std::string> edges_of(const Graph& graph) {
  std::multiset<std::string> edges;
  for (Node node = 0; node < graph.size(); ++node)
    for (const Node producer : graph.producers(node))
      edges.insert(to_string(graph.action(node)) + " <- " + to_string(graph.action(producer)));
  return edges;
}

/// Whether `user` needs `giver` by the rules of a chain with split backwards.
bool needs(const Action& user, const Action& giver) {
  if (user.micro_batch != giver.micro_batch) return false;
  const int step = giver.stage.value - user.stage.value;
  if (user.op == Op::Forward) return giver.op == Op::Forward && step == -1;
  if (user.op == Op::BackwardWeight) return giver.op == Op::BackwardInput && step == 0;
  return giver.op == Op::Forward ? step == 0 : giver.op == Op::BackwardInput && step == 1;
}

/// The same from the rules, pair by pair.
std::multiset<std::string> needs_of(const Program& program, bool across_ranks_alone) {
  std::multiset<std::string> found;
  for (const auto& users : program.ranks)
    for (const auto& givers : program.ranks)
      for (const Action& user : users)
        for (const Action& giver : givers)
          if (needs(user, giver) && (&users != &givers || !across_ranks_alone))
            found.insert(to_string(user) + " <- " + to_string(giver));
  return found;
}

TEST(Graph, ImpliedEdges_AreLeftOut) {
  const Program program = generate("zb-v", {.ranks = 3, .micro_batches = 6});

  EXPECT_EQ(edges_of(Graph(program)), needs_of(program, true));
  EXPECT_EQ(edges_of(Graph(program, ListOrder::Open)), needs_of(program, false));
}

TEST(Graph, OpenLists_AnyOrderSameEdges) {
  Program program = generate("zb-v", {.ranks = 3, .micro_batches = 6});
  const auto edges = edges_of(Graph(program, ListOrder::Open));
  for (auto& list : program.ranks) std::ranges::reverse(list);
  const Graph reversed(program, ListOrder::Open);

  EXPECT_EQ(edges_of(reversed), edges);
  EXPECT_FALSE(reversed.has_wrong_lists());
  EXPECT_TRUE(Graph(program).has_wrong_lists());
}

TEST(Graph, OfOpenListsRefusesAnActionThatOccursTwice) {
  Program program = generate("1f1b", {.ranks = 2, .micro_batches = 2});
  program.ranks[1].push_back(program.ranks[1].front());

  EXPECT_NO_THROW(Graph{program});
  try {
    const Graph graph(program, ListOrder::Open);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("twice"));
  }
}

}  // namespace
}  // namespace millrace
