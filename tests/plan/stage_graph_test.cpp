// What flows between stages: the numbers of links, the messages along them, what is refused, and
// that verify, simulate and the message passes agree with a replay that derives all of it itself.
#include "millrace/scheduler/plan/stage_graph.hpp"

#include <array>

#include <gmock/gmock.h>

#include "millrace/core/error.hpp"
#include "millrace/core/random.hpp"
#include "millrace/scheduler/plan/graph.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/simulate.hpp"
#include "millrace/scheduler/plan/text.hpp"
#include "millrace/scheduler/plan/verify.hpp"
#include "support/naive_replay.hpp"
#include "support/random_program.hpp"
#include "support/small_programs.hpp"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::uint64_t kSeed = 20261122;

StageEdge edge(int from, int output, int to, int input) {
  return {Stage{from}, output, Stage{to}, input};
}

Shape shape_of(int stages, std::vector<StageEdge> edges) {
  Shape shape{.ranks = stages, .placement = Placement::straight(stages)};
  shape.edges = std::move(edges);
  return shape;
}

/// 0 -> 1 -> 2 -> 3 with skips from 0 to 2 and 3 and from 1 to 3.
Shape with_skips() {
  return shape_of(4,
                  {edge(0, 0, 1, 0),
                   edge(1, 0, 2, 0),
                   edge(2, 0, 3, 0),
                   edge(0, 0, 2, 1),
                   edge(0, 1, 3, 1),
                   edge(1, 0, 3, 2)});
}

std::string numbers(const StageGraph& graph, Stage stage, bool leaving) {
  std::string text;
  const auto add = [&](const StageLink& link) {
    text += std::to_string(leaving ? link.to.value : link.from.value) + "@" +
            std::to_string(leaving ? link.leaving : link.entering) + " ";
  };
  if (leaving)
    graph.for_each_leaving(stage, add);
  else
    graph.for_each_entering(stage, add);
  return text;
}

TEST(StageGraph, AChainLinksNeighboursUnderNumberZero) {
  const StageGraph graph(shape_of(3, {}));

  EXPECT_TRUE(graph.is_chain());
  EXPECT_EQ(graph.links(), 2U);
  EXPECT_EQ(numbers(graph, Stage{0}, true), "1@0 ");
  EXPECT_EQ(numbers(graph, Stage{2}, true), "");
  EXPECT_EQ(numbers(graph, Stage{0}, false), "");
  EXPECT_EQ(numbers(graph, Stage{2}, false), "1@0 ");
}

TEST(StageGraph, LinkNumbers_ZeroIsTheNeighbour) {
  const StageGraph graph(with_skips());

  EXPECT_EQ(graph.links(), 6U);
  EXPECT_EQ(numbers(graph, Stage{0}, true), "1@0 2@1 3@2 ");
  EXPECT_EQ(numbers(graph, Stage{1}, true), "2@0 3@1 ");
  EXPECT_EQ(numbers(graph, Stage{3}, false), "0@1 1@2 2@0 ");
  std::vector<std::uint32_t> indices;
  for (int stage = 0; stage < 4; ++stage)
    graph.for_each_leaving(Stage{stage},
                           [&](const StageLink& link) { indices.push_back(link.index); });
  EXPECT_THAT(indices, ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(StageGraph, Link_OrdersEdgesByInput) {
  const StageGraph graph(shape_of(2, {edge(0, 3, 1, 1), edge(0, 0, 1, 2), edge(0, 1, 1, 0)}));
  const auto link =
      graph.link({.op = Op::SendForward, .stage = Stage{0}, .micro_batch = {}, .slice = {}});

  ASSERT_TRUE(link.has_value());
  EXPECT_THAT(graph.edges(*link),
              ElementsAre(edge(0, 1, 1, 0), edge(0, 3, 1, 1), edge(0, 0, 1, 2)));
}

TEST(StageGraph, BothEndsNameTheSameMessage) {
  const Shape shape = with_skips();
  const StageGraph graph(shape);
  for (const Op op : {Op::Forward, Op::BackwardInput})
    for (int stage = 0; stage < 4; ++stage) {
      const Action producer{
          .op = op, .stage = Stage{stage}, .micro_batch = MicroBatch{3}, .slice = Slice{1}};
      for_each_link_out(graph, producer, [&](const StageLink& link) {
        const Message sent = message_of(shape, send_of(producer, link), 7);
        EXPECT_EQ(sent, message_of(shape, graph, receive_of(producer, link), 7));
        EXPECT_EQ(sent.source, Rank{stage});
        EXPECT_EQ(sent.destination.value, sent.stage.value);
        EXPECT_EQ(sent.step, 7U);
        EXPECT_EQ(sent.unit, producer.unit());
      });
    }
  EXPECT_THROW(
      (void)message_of(
          shape, Action{.op = Op::Forward, .stage = {}, .micro_batch = {}, .slice = {}}, 0),
      InvalidArgument);
}

TEST(StageGraph, MessagesOfAChainAreThoseOfTheNeighbours) {
  const Message message = message_of(
      shape_of(3, {}),
      {.op = Op::RecvBackward, .stage = Stage{1}, .micro_batch = MicroBatch{4}, .slice = {}},
      2);

  EXPECT_EQ(message.source, Rank{2});
  EXPECT_EQ(message.destination, Rank{1});
  EXPECT_EQ(message.direction, Direction::Backward);
  EXPECT_EQ(message.stage, Stage{1});
  EXPECT_EQ(message.edge, 0);
}

TEST(StageGraph, WhatIsNoGraphIsRefusedWithAMessage) {
  const auto refusal = [](int stages, std::vector<StageEdge> edges) {
    try {
      static_cast<void>(StageGraph(shape_of(stages, std::move(edges))));
    } catch (const InvalidArgument& fault) {
      return std::string(fault.what());
    }
    return std::string("nothing");
  };
  EXPECT_THAT(refusal(2, {edge(1, 0, 0, 0)}), HasSubstr("does not lead to a later stage"));
  EXPECT_THAT(refusal(2, {edge(0, 0, 0, 0)}), HasSubstr("does not lead to a later stage"));
  EXPECT_THAT(refusal(2, {edge(0, 0, 2, 0)}), HasSubstr("names a stage outside 0 to 1"));
  EXPECT_THAT(refusal(2, {edge(0, -1, 1, 0)}), HasSubstr("has a negative index"));
  EXPECT_THAT(refusal(2, {edge(0, 65536, 1, 0)}), HasSubstr("names an output above 65535"));
  EXPECT_THAT(refusal(2, {edge(0, 0, 1, 0), edge(0, 1, 1, 0)}), HasSubstr("has two producers"));
  EXPECT_THAT(refusal(2, {edge(0, 0, 1, 0), edge(0, 1, 1, 2)}),
              HasSubstr("input 1 of stage 1 has no producer"));
  EXPECT_THAT(refusal(3, {edge(0, 0, 1, 0), edge(1, 0, 2, 1)}),
              HasSubstr("input 0 of stage 2 has no producer"));
  EXPECT_THAT(refusal(3, {edge(0, 0, 2, 0)}), HasSubstr("stage 1 has no input"));
  EXPECT_THAT(refusal(3, {edge(0, 0, 1, 0), edge(0, 0, 2, 0)}),
              HasSubstr("stage 1 has no consumer and is not a sink"));
  EXPECT_EQ(refusal(2, {edge(0, 0, 1, 0)}), "nothing");
}

/// Stage 0 feeds the main stage, 2, and stage 1, which has a loss of its own.
Shape with_two_sinks() {
  Shape shape = shape_of(3, {edge(0, 0, 1, 0), edge(0, 0, 2, 0)});
  shape.sinks = {Stage{1}, Stage{2}};
  return shape;
}

TEST(StageGraph, SinksAreNumberedAndNeedNoConsumer) {
  const StageGraph graph(with_two_sinks());
  EXPECT_EQ(graph.sinks(), 2U);
  EXPECT_EQ(graph.sink(Stage{0}), std::nullopt);
  EXPECT_EQ(graph.sink(Stage{1}), 0U);
  EXPECT_EQ(graph.sink(Stage{2}), 1U);
  EXPECT_EQ(StageGraph(3).sinks(), 1U);
  EXPECT_EQ(StageGraph(3).sink(Stage{2}), 0U);
  EXPECT_EQ(StageGraph(3).sink(Stage{1}), std::nullopt);
}

TEST(StageGraph, WhatCannotBeASinkIsRefused) {
  const auto refusal = [](std::vector<Stage> sinks, bool chain = false) {
    Shape shape = with_two_sinks();
    if (chain) shape.edges.clear();
    shape.sinks = std::move(sinks);
    try {
      static_cast<void>(StageGraph(shape));
    } catch (const InvalidArgument& fault) {
      return std::string(fault.what());
    }
    return std::string("nothing");
  };
  EXPECT_EQ(refusal({Stage{1}, Stage{2}}), "nothing");
  EXPECT_EQ(refusal({Stage{2}}, true), "nothing");
  EXPECT_THAT(refusal({}), HasSubstr("stage 1 has no consumer and is not a sink"));
  EXPECT_THAT(refusal({Stage{2}}), HasSubstr("stage 1 has no consumer and is not a sink"));
  EXPECT_THAT(refusal({Stage{1}}), HasSubstr("last sink is stage 1; it must be the last stage, 2"));
  EXPECT_THAT(refusal({Stage{2}, Stage{1}}), HasSubstr("ascend"));
  EXPECT_THAT(refusal({Stage{1}, Stage{1}, Stage{2}}), HasSubstr("ascend"));
  EXPECT_THAT(refusal({Stage{0}, Stage{1}, Stage{2}}),
              HasSubstr("stage 0 is a sink, so no edge may leave it"));
  EXPECT_THAT(refusal({Stage{1}, Stage{2}}, true), HasSubstr("in a chain"));
}

TEST(StageGraph, PlanFile_HasSinksWhereTheyAreGiven) {
  Program program = testing_plan::one_f_one_b(3, 4);
  EXPECT_THAT(write_plan({program, {}}), ::testing::Not(HasSubstr("sinks")));
  program.shape.edges = with_two_sinks().edges;
  program.shape.sinks = with_two_sinks().sinks;
  EXPECT_THAT(verify(program), ::testing::IsEmpty());
  const ParsedPlan parsed = read_plan(write_plan({program, {}}));
  ASSERT_TRUE(parsed.plan.has_value());
  EXPECT_EQ(parsed.plan->program, program);
  Program other = program;
  other.shape.sinks.clear();
  EXPECT_NE(plan_hash(program), plan_hash(other));
  // A loss in stage 1 needs nothing of the main stage: its backward pass may come before that.
  const auto makespan = [](const Program& of) {
    const auto timeline = std::get<Timeline>(simulate(Graph(of), Cost::unit(of.shape)));
    double end = 0;
    for (const auto& rank : timeline.ranks)
      for (const Interval& interval : rank) end = std::max(end, interval.end);
    return end;
  };
  EXPECT_LT(makespan(program), makespan(testing_plan::one_f_one_b(3, 4)));
}

TEST(StageGraph, VerifyReportsEdgesThatAreNone) {
  Program program = testing_plan::one_f_one_b(2, 2);
  program.shape.edges = {edge(1, 0, 0, 0)};

  const auto violations = verify(program);

  ASSERT_EQ(violations.size(), 1U);
  EXPECT_THAT(violations[0].message, HasSubstr("does not lead to a later stage"));
}

TEST(StageGraph, APlanFileCarriesEdgesAndAChainNeedsNone) {
  Program program = testing_plan::one_f_one_b(4, 2);
  EXPECT_THAT(write_plan({program, {}}), ::testing::Not(HasSubstr("edges")));
  const std::string chain_hash = plan_hash(program);
  program.shape.edges = with_skips().edges;
  program = insert_messages(program);

  const ParsedPlan parsed = read_plan(write_plan({program, {}}));

  ASSERT_TRUE(parsed.plan.has_value());
  EXPECT_EQ(parsed.plan->program, program);
  EXPECT_NE(plan_hash(program), chain_hash);
  EXPECT_TRUE(verify(parsed.plan->program).empty());
}

TEST(StageGraph, WhatCsvCannotCarryIsRefused) {
  Program program = testing_plan::one_f_one_b(4, 2);
  program.shape.edges = with_skips().edges;

  EXPECT_THROW((void)write_csv(insert_messages(program)), InvalidArgument);
}

/// Edges of a graph in which every stage takes one to three inputs.
std::vector<StageEdge> random_edges(int stages, std::uint32_t number) {
  std::uint32_t draws = 0;
  const auto below = [&](int bound) {
    return static_cast<int>(random_below(
        RandomKey{.seed = kSeed, .step = number}, ++draws, static_cast<std::uint32_t>(bound)));
  };
  std::vector<StageEdge> edges;
  std::vector<bool> gives(static_cast<std::size_t>(stages), false);
  for (int to = 1; to < stages; ++to) {
    const int inputs = 1 + below(3);
    for (int input = 0; input < inputs; ++input) {
      const bool neighbour = input == 0 && !gives[static_cast<std::size_t>(to - 1)];
      const int from = neighbour ? to - 1 : below(to);
      gives[static_cast<std::size_t>(from)] = true;
      edges.push_back(edge(from, below(2), to, input));
    }
  }
  return edges;
}

TEST(StageGraph, RandomGraphs_AgreeWithNaiveReplay) {
  int ended = 0, skipping = 0;
  for (std::uint32_t number = 0; number < 600; ++number) {
    SCOPED_TRACE(number);
    std::array<std::uint8_t, 200> data{};
    for (std::uint32_t i = 0; i < data.size(); ++i)
      data[i] = static_cast<std::uint8_t>(
          random_below(RandomKey{.seed = kSeed + 1, .step = number}, i, 256));
    Program program = compute_only(testing_plan::random_program(data));
    program.shape.edges = random_edges(program.shape.stages(), number);
    if (program.shape.stages() == 1) program.shape.edges.clear();
    const StageGraph graph(program.shape);
    const std::size_t chain = static_cast<std::size_t>(program.shape.stages() - 1);
    skipping += graph.links() > chain ? 1 : 0;
    Cost cost = Cost::unit(program.shape);
    cost.latency = number % 2 == 0 ? 0 : 3;
    for (const bool written : {false, true}) {
      const Program run = written ? insert_messages_before_use(program) : program;
      const Graph nodes(run);
      const auto simulated = simulate(nodes, cost);
      const auto replayed = testing_plan::NaiveReplay(run, cost).run();
      ASSERT_EQ(std::holds_alternative<Timeline>(simulated), replayed.has_value());
      ASSERT_EQ(verify(run).empty(), replayed.has_value());
      if (!replayed) continue;
      ++ended;
      EXPECT_EQ(std::get<Timeline>(simulated).ranks, *replayed);
    }
    if (!verify(program).empty()) continue;
    // Pairwise insertion is proven for the strictest transport.
    const Program strict = insert_messages(program);
    EXPECT_TRUE(verify(strict, {.transport = Transport::rendezvous()}).empty());
  }
  EXPECT_GT(ended, 100);
  EXPECT_GT(skipping, 100);
}

TEST(StageGraph, EachLinkHasItsOwnTransfers) {
  Program program = testing_plan::one_f_one_b(3, 1);
  program.shape.edges = {edge(0, 0, 1, 0), edge(1, 0, 2, 0), edge(0, 0, 2, 1)};
  Cost cost = Cost::unit(program.shape);
  cost.link_latency.assign(9, 0);
  cost.link_latency[0 * 3 + 2] = 50;  // the skip takes longer than the way through stage 1

  const Graph graph(program);
  const auto timeline = std::get<Timeline>(simulate(graph, cost));

  const double first = timeline.ranks[0][0].end;
  EXPECT_EQ(timeline.ranks[1][0].start, first);
  EXPECT_EQ(timeline.ranks[2][0].start, first + 50);
  const auto lowered = insert_messages_before_use(program);
  const Graph lowered_graph(lowered);
  const auto written = std::get<Timeline>(simulate(lowered_graph, cost));
  for (std::size_t rank = 0; rank < 3; ++rank)
    EXPECT_EQ(written.ranks[rank].back().end, timeline.ranks[rank].back().end);
}

}  // namespace
}  // namespace millrace
