// Programs that nobody's generator makes: every public function that takes one answers with a
// result or with InvalidArgument, whatever the numbers in it.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan.hpp"

namespace {

using namespace millrace;

/// A small generator of our own: the numbers must be the same on every machine.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15 + 1) {}

  std::uint32_t below(std::uint32_t sides) {
    state_ = state_ * 6364136223846793005 + 1442695040888963407;
    return static_cast<std::uint32_t>(state_ >> 33) % sides;
  }

  bool one_in(std::uint32_t chances) { return below(chances) == 0; }

  /// Mostly inside [0, count), sometimes beside it or far away.
  std::int32_t number(int count) {
    constexpr std::int32_t kFar[] = {-1,
                                     -7,
                                     1 << 20,
                                     std::numeric_limits<std::int32_t>::max(),
                                     std::numeric_limits<std::int32_t>::min()};
    if (one_in(60)) return kFar[below(5)];
    if (one_in(60)) return count;
    return count < 1 ? 0 : static_cast<std::int32_t>(below(static_cast<std::uint32_t>(count)));
  }

 private:
  std::uint64_t state_;
};

Action any_action(Dice& dice, const Shape& shape) {
  const auto op = static_cast<Op>(dice.one_in(200) ? 200 : dice.below(kOps));
  return {op,
          dice.one_in(12),
          static_cast<std::uint8_t>(dice.number(shape.replicas())),
          static_cast<std::uint8_t>(dice.one_in(8) ? dice.below(3) : 0),
          Stage{dice.number(shape.stages())},
          MicroBatch{dice.number(shape.micro_batches)},
          Slice{dice.number(shape.slices)}};
}

/// A valid schedule, now and then with a few messages, reductions or pairs.
Program seedling(Dice& dice) {
  constexpr const char* kNames[] = {
      "1f1b", "interleaved", "zb-v", "dualpipe", "seq-1f1b", "forward"};
  ScheduleOptions options;
  options.ranks = 2;
  options.micro_batches = 4;
  Program program = generate(kNames[dice.below(6)], options);
  if (dice.one_in(3)) program = insert_reductions(program, 1 + static_cast<int>(dice.below(2)));
  if (dice.one_in(2)) program = insert_messages(program);
  return program;
}

void spoil_shape(Dice& dice, Shape& shape) {
  if (dice.one_in(8)) shape.ranks = dice.number(4);
  if (dice.one_in(8)) shape.micro_batches = dice.number(6);
  if (dice.one_in(8)) shape.slices = dice.number(3);
  if (dice.one_in(8)) shape.placement = Placement::loop(1 + static_cast<int>(dice.below(4)), 2);
  if (dice.one_in(16)) shape.placement = Placement();
  if (dice.one_in(16)) shape.placement = Placement(std::vector<std::vector<Rank>>(1));
  if (dice.one_in(8)) shape.replica_of.assign(dice.below(6), Replica{dice.number(2)});
  if (dice.one_in(8)) shape.forward_only = !shape.forward_only;
}

/// A valid schedule with some faults, or actions at random.
Program malformed(std::uint64_t seed) {
  Dice dice(seed);
  Program program = seedling(dice);
  if (dice.one_in(2)) spoil_shape(dice, program.shape);
  if (dice.one_in(16)) program.ranks.resize(dice.below(4));
  for (auto& list : program.ranks) {
    if (dice.one_in(8)) list.clear();
    for (Action& action : list)
      if (dice.one_in(20)) action = any_action(dice, program.shape);
    if (list.size() > 1 && dice.one_in(3))
      std::swap(list[dice.below(static_cast<std::uint32_t>(list.size()))],
                list[dice.below(static_cast<std::uint32_t>(list.size()))]);
    if (dice.one_in(4)) list.push_back(any_action(dice, program.shape));
  }
  return program;
}

/// Intervals for every action, whether or not they make sense; now and then one too few.
Timeline any_timeline(const Program& program, std::uint64_t seed) {
  Dice dice(seed);
  Timeline timeline;
  for (const auto& list : program.ranks) {
    auto& row = timeline.ranks.emplace_back();
    for (std::size_t i = 0; i < list.size(); ++i) {
      const double start = dice.below(40);
      row.push_back({start, start + dice.below(4)});
    }
    if (!row.empty() && dice.one_in(20)) row.pop_back();
  }
  return timeline;
}

/// Costs of the right lengths for the shape, whatever the shape.
Cost any_cost(const Shape& shape, std::uint64_t seed) {
  Dice dice(seed);
  Cost cost = Cost::of_full_stage(shape, 1, 2, 1, dice.below(2));
  if (dice.one_in(2)) cost.pair.ticks.fill(3);
  if (dice.one_in(3)) {
    cost.bytes_per_tick = 4;
    cost.message_bytes = 2;
    cost.contention = dice.one_in(2);
  }
  if (dice.one_in(2)) cost.cores = 1;
  if (dice.one_in(3)) {
    cost.data_parallel = dice.number(4);
    cost.gradient_bytes.assign(cost.memory_forward.size(), 3);
    cost.tree_of_sums = dice.one_in(2);
  }
  return cost;
}

using Call = std::function<void(const Program&, const Timeline&, std::uint64_t)>;
using Calls = std::map<std::string, Call>;

/// A call that needs the program alone, or the program, a timeline of it and costs.
template <class Function>
Call alone(Function function) {
  return [=](const Program& p, const Timeline&, std::uint64_t) { (void)function(p); };
}
template <class Function>
Call timed(Function function) {
  return [=](const Program& p, const Timeline& t, std::uint64_t seed) {
    (void)function(p, t, any_cost(p.shape, seed));
  };
}

void verify_bounded(const Program& p, const Timeline&, std::uint64_t seed) {
  VerifyOptions options;
  options.transport = Transport::bounded(static_cast<int>(seed % 3));
  options.transport.ordered = seed % 2 == 0;
  options.cost = any_cost(p.shape, seed);
  options.memory_limit = {2};
  (void)verify(p, options);
}

Calls checks() {
  return {{"verify", alone([](auto& p) { return verify(p); })},
          {"verify bounded", verify_bounded},
          {"verify graph", alone([](auto& p) { return verify(Graph(p)); })},
          {"accumulation", alone([](auto& p) { return accumulation(p); })},
          {"channel_capacities", alone([](auto& p) { return channel_capacities(p); })},
          {"partial_sums", alone([](auto& p) {
             const auto stages = static_cast<std::size_t>(std::max(0, p.shape.stages()));
             return partial_sums(p, std::vector<std::size_t>(stages, 1), 2);
           })},
          {"uniform_capacity", alone([](auto& p) { return uniform_capacity(p); })}};
}

Calls simulations() {
  return {{"simulate", timed([](auto& p, auto&, const Cost& c) { return simulate(Graph(p), c); })},
          {"simulate_as_measured", timed([](auto& p, auto& t, const Cost& c) {
             return simulate_as_measured(Graph(p), c, t);
           })},
          {"report", timed([](auto& p, auto& t, const Cost& c) { return report(Graph(p), c, t); })},
          {"stage_sums",
           timed([](auto& p, auto& t, const Cost& c) { return stage_sums(Graph(p), c, t); })},
          {"critical_path",
           timed([](auto& p, auto& t, const Cost& c) { return critical_path(Graph(p), c, t); })},
          {"memory_over_time",
           timed([](auto& p, auto& t, const Cost& c) { return memory_over_time(Graph(p), c, t); })},
          {"simulate_iterations", timed([](auto& p, auto&, const Cost& c) {
             return simulate_iterations(Graph(p), c, 2, Barrier::Yes);
           })},
          {"simulate_jitter", timed([](auto& p, auto&, const Cost& c) {
             return simulate_jitter(Graph(p), c, {0.1, 2, 1});
           })},
          {"relist", timed([](auto& p, auto&, const Cost& c) { return relist(p, c, {}); })},
          {"lower_bound", timed([](auto& p, auto&, const Cost& c) {
             return lower_bound(p.shape, c, Objective::Makespan);
           })}};
}

Calls passes() {
  return {
      {"insert_messages", alone([](auto& p) { return insert_messages(p); })},
      {"insert_messages_before_use", alone([](auto& p) { return insert_messages_before_use(p); })},
      {"split_backward", alone([](auto& p) { return split_backward(p); })},
      {"merge_backward", alone([](auto& p) { return merge_backward(p); })},
      {"insert_reductions", alone([](auto& p) { return insert_reductions(p); })},
      {"insert_reductions of copies", alone([](auto& p) { return insert_reductions(p, 4); })},
      {"insert_recompute", alone([](auto& p) { return insert_recompute(p); })},
      {"insert_recompute of stages", alone([](auto& p) {
         return insert_recompute(
             p, std::vector<bool>(static_cast<std::size_t>(std::max(0, p.shape.stages())), true));
       })},
      {"insert_recompute of actions", alone([](auto& p) {
         return insert_recompute(p, [](const Action& action) { return action.stage.value == 0; });
       })},
      {"recomputed_stages", alone([](auto& p) { return recomputed_stages(p); })},
      {"describe_recompute", alone([](auto& p) { return describe_recompute(p); })},
      {"decouple_pairs", alone([](auto& p) { return decouple_pairs(p); })},
      {"compute_only", alone([](auto& p) { return compute_only(p); })}};
}

void draw_marked(const Program& p, const Timeline&, std::uint64_t seed) {
  Dice dice(seed);
  (void)draw_order(p, {{Rank{dice.number(2)}, static_cast<std::size_t>(dice.number(9))}});
}

Calls texts_and_pictures() {
  return {{"write_csv", alone([](auto& p) { return write_csv(p); })},
          {"write_plan", alone([](auto& p) {
             return write_plan({p, {}});
           })},
          {"plan_hash", alone([](auto& p) { return plan_hash(p); })},
          {"read_trace", alone([](auto& p) { return read_trace("[]", p); })},
          {"draw_order", draw_marked},
          {"draw_ascii", timed([](auto& p, auto& t, const Cost&) {
             return draw_ascii(p, t, {false, 60});
           })},
          {"draw_svg", timed([](auto& p, auto& t, const Cost& c) { return draw_svg(p, t, c); })},
          {"draw_html", timed([](auto& p, auto& t, const Cost& c) {
             return draw_html(p, t, c, "", {{p, t}});
           })},
          {"draw_trace", timed([](auto& p, auto& t, const Cost&) { return draw_trace(p, t); })}};
}

// Everything but InvalidArgument escapes and fails the test, as does a crash or a sanitizer.
TEST(MalformedPrograms, GetAResultOrInvalidArgumentFromEveryFunction) {
  constexpr std::uint64_t kPrograms = 400;
  Calls calls = checks();
  for (Calls more : {simulations(), passes(), texts_and_pictures()}) calls.merge(more);
  ASSERT_EQ(calls.size(), 39U);
  for (const auto& [name, call] : calls) {
    SCOPED_TRACE(name);
    int refused = 0;
    for (std::uint64_t seed = 1; seed <= kPrograms; ++seed) {
      const Program program = malformed(seed);
      try {
        call(program, any_timeline(program, seed), seed);
      } catch (const InvalidArgument&) {
        ++refused;
      }
    }
    EXPECT_LT(refused, kPrograms) << "no program got as far as the function itself";
  }
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no refusal";
}

TEST(MalformedPrograms, AreRejectedWithValueAndBounds) {
  Program program = generate("1f1b", {.ranks = 2, .micro_batches = 3});
  program.ranks[1][0].stage = Stage{5};
  const std::string outside =
      "5F0 lies outside the shape, which has 2 stages, 3 micro-batches, 1 slices and 1 replicas";
  EXPECT_EQ(refusal([&] { (void)accumulation(program); }), outside);
  EXPECT_EQ(refusal([&] { (void)insert_messages_before_use(program); }), outside);
  EXPECT_EQ(refusal([&] { (void)Graph(program); }), outside);
  program.shape.placement = Placement::straight(3);
  EXPECT_EQ(refusal([&] { (void)accumulation(program); }),
            "stage 2 is placed on rank 2; the shape has 2 ranks");
  program.shape.slices = 0;
  EXPECT_EQ(refusal([&] { (void)Graph(program); }), "the shape has 0 slices; at least 1 is needed");
}

TEST(MalformedPrograms, NeedAPartnerForEveryMessageToHaveCapacities) {
  Program program = insert_messages(generate("1f1b", {.ranks = 2, .micro_batches = 3}));
  Program shorter = program;
  for (std::size_t i = 0; i < shorter.ranks[1].size(); ++i)
    if (is_receive(shorter.ranks[1][i].op)) {
      shorter.ranks[1].erase(shorter.ranks[1].begin() + static_cast<std::ptrdiff_t>(i));
      break;
    }
  EXPECT_EQ(refusal([&] { (void)channel_capacities(shorter); }),
            "rank 0 sends 3 messages to rank 1, which has 2 receives; each send needs its own");
  program.ranks[1].push_back({Op::SendForward, false, 0, 0, Stage{1}, MicroBatch{0}, Slice{0}});
  EXPECT_EQ(refusal([&] { (void)uniform_capacity(program); }),
            "1SEND_F0 has no partner: the pipeline ends at its stage");
}

}  // namespace
