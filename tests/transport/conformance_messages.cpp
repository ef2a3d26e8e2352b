// What Endpoint promises of messages, said once for all transports.
#include <exception>
#include <numeric>
#include <thread>
#include <utility>

#include <gmock/gmock.h>

#include "millrace/core/random.hpp"
#include "transport/conformance.hpp"

namespace millrace::testing_transport {

using namespace std::chrono_literals;
using testing::HasSubstr;

namespace {

TensorList numbered(int number) {
  return TensorList(filled(DType::F32, {4, 3}, number));
}

TEST_P(TransportConformance, Receives_AreByTagInAnyOrder) {
  auto ends = connect(2);
  constexpr int kMessages = 40;
  std::vector<int> order(kMessages);
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size() - 1; i > 0; --i)
    std::swap(order[i],
              order[random_below(
                  {.seed = 7}, static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i + 1))]);

  on_every_rank(ends, [&](Endpoint& end) {
    if (end.rank() == Rank{0})
      for (int i = 0; i < kMessages; ++i) end.send(Rank{1}, forward_tag(i), numbered(i));
    else
      for (const int i : order)
        EXPECT_TRUE(same(end.receive(Rank{0}, forward_tag(i), soon())[0], numbered(i)[0])) << i;
  });
}

/// An endpoint that does not know leaves the message to receive.
TEST_P(TransportConformance, ATriedReceiveNeverWaitsAndGivesAMessageOnce) {
  auto ends = connect(2);
  on_every_rank(ends, [&](Endpoint& end) {
    if (end.rank() == Rank{0}) {
      EXPECT_FALSE(end.try_receive(Rank{1}, forward_tag(1)));
      end.send(Rank{1}, forward_tag(0), numbered(0));
      EXPECT_TRUE(same(end.receive(Rank{1}, forward_tag(1), soon())[0], numbered(1)[0]));
      return;
    }
    std::optional<TensorList> message;
    for (int tries = 0; tries < 1000 && !message; ++tries) {
      message = end.try_receive(Rank{0}, forward_tag(0));
      std::this_thread::yield();
    }
    if (!message) message = end.receive(Rank{0}, forward_tag(0), soon());
    EXPECT_TRUE(same((*message)[0], numbered(0)[0]));
    EXPECT_FALSE(end.try_receive(Rank{0}, forward_tag(0)));
    end.send(Rank{0}, forward_tag(1), numbered(1));  // after what rank 0 sent after its try
  });
}

TEST_P(TransportConformance, EveryFieldOfTheTagTellsMessagesApart) {
  auto ends = connect(2);
  std::vector<MessageTag> tags(1);
  tags.emplace_back().step = std::uint64_t{1} << 40U;
  tags.emplace_back().direction = Direction::Backward;
  tags.emplace_back().direction = Direction::Collective;
  tags.emplace_back().replica = Replica{1};
  tags.emplace_back().stage = Stage{1};
  tags.emplace_back().micro_batch = MicroBatch{1};
  tags.emplace_back().slice = Slice{1};

  on_every_rank(ends, [&](Endpoint& end) {
    if (end.rank() == Rank{0})
      for (std::size_t i = 0; i < tags.size(); ++i)
        end.send(Rank{1}, tags[i], numbered(static_cast<int>(i)));
    else
      for (std::size_t i = tags.size(); i-- > 0;)
        EXPECT_TRUE(
            same(end.receive(Rank{0}, tags[i], soon())[0], numbered(static_cast<int>(i))[0]))
            << to_string(tags[i]);
  });
}

TEST_P(TransportConformance, SameTagsOfDifferentSendersAreDifferentMessages) {
  auto ends = connect(3);

  on_every_rank(ends, [&](Endpoint& end) {
    if (end.rank() != Rank{0}) return end.send(Rank{0}, forward_tag(0), numbered(end.rank().value));
    for (const int from : {2, 1})
      EXPECT_TRUE(same(end.receive(Rank{from}, forward_tag(0), soon())[0], numbered(from)[0]));
  });
}

TEST_P(TransportConformance, ASenderNeverWaitsForItsReceiver) {
  auto ends = connect(2);

  // One after the other: no rank receives while rank 0 sends.
  on_rank(ends, Rank{0}, [](Endpoint& end) {
    for (int i = 0; i < 64; ++i) end.send(Rank{1}, forward_tag(i), numbered(i));
  });
  on_rank(ends, Rank{1}, [](Endpoint& end) {
    for (int i = 0; i < 64; ++i)
      EXPECT_TRUE(same(end.receive(Rank{0}, forward_tag(i), soon())[0], numbered(i)[0]));
  });
}

TEST_P(TransportConformance, ExceededDepth_NamesTheChannel) {
  auto ends = connect(2, {{Rank{0}, Rank{1}, Direction::Forward, 2}});

  on_rank(ends, Rank{0}, [](Endpoint& end) {
    std::string message;
    end.send(Rank{1}, forward_tag(0), numbered(0));
    end.send(Rank{1}, forward_tag(1), numbered(1));
    try {
      end.send(Rank{1}, forward_tag(2), numbered(2));
    } catch (const TransportError& error) {
      message = error.what();
    }
    EXPECT_THAT(message, HasSubstr("forward"));
    EXPECT_THAT(message, HasSubstr("rank 0 to rank 1"));
    EXPECT_THAT(message, HasSubstr("2"));
  });
}

TEST_P(TransportConformance, AReceiveMakesRoomInItsChannel) {
  auto ends = connect(2, {{Rank{0}, Rank{1}, Direction::Forward, 1}});
  const auto answer = [](int i) {
    MessageTag tag = forward_tag(i, 0);
    tag.direction = Direction::Backward;
    return tag;
  };

  on_every_rank(ends, [&](Endpoint& end) {
    for (int i = 0; i < 50; ++i) {
      if (end.rank() == Rank{0}) {
        end.send(Rank{1}, forward_tag(i), numbered(i));
        EXPECT_EQ(end.receive(Rank{1}, answer(i), soon()).size(), 0U);
      } else {
        EXPECT_EQ(end.receive(Rank{0}, forward_tag(i), soon()).size(), 1U);
        end.send(Rank{0}, answer(i), TensorList());
      }
    }
  });
}

TEST_P(TransportConformance, Deadline_NamesMessageAndSender) {
  auto ends = connect(2);

  on_rank(ends, Rank{1}, [](Endpoint& end) {
    std::string message;
    const auto start = std::chrono::steady_clock::now();
    try {
      (void)end.receive(Rank{0}, forward_tag(5, 1, 12), start + 50ms);
    } catch (const Cancelled&) {
      ADD_FAILURE() << "no rank cancelled";
    } catch (const TransportError& error) {
      message = error.what();
    }
    EXPECT_THAT(message, HasSubstr(to_string(forward_tag(5, 1, 12))));
    EXPECT_THAT(message, HasSubstr("rank 0"));
    EXPECT_GE(std::chrono::steady_clock::now(), start + 50ms);
    EXPECT_LT(std::chrono::steady_clock::now(), start + 2s);
  });
}

TEST_P(TransportConformance, Cancel_EndsAllWaits) {
  auto ends = connect(4);

  on_every_rank(ends, [&](Endpoint& end) {
    if (end.rank() == Rank{2}) {
      end.cancel("stage 2 gave up");
      end.cancel("a second reason");
    }
    const Rank silent{(end.rank().value + 1) % 4};
    try {
      (void)end.receive(silent, forward_tag(0), soon());
      ADD_FAILURE() << "nothing was sent";
    } catch (const Cancelled& cancelled) {
      EXPECT_STREQ(cancelled.what(), "stage 2 gave up") << "on rank " << end.rank().value;
    }
    EXPECT_THROW(end.send(silent, forward_tag(1), numbered(1)), Cancelled);
    EXPECT_THROW((void)end.receive(silent, forward_tag(1), soon()), Cancelled);
  });
}

TEST_P(TransportConformance, CancelFromAnotherThreadEndsTheOwnWait) {
  auto ends = connect(2);

  on_rank(ends, Rank{1}, [](Endpoint& end) {
    std::jthread canceller([&] { end.cancel("stop"); });
    EXPECT_THROW((void)end.receive(Rank{0}, forward_tag(0), soon()), Cancelled);
  });
}

TEST_P(TransportConformance, WhatWasSentBeforeAGoodbyeArrives) {
  auto ends = connect(2);

  on_every_rank(ends, [&](Endpoint& end) {
    if (end.rank() == Rank{0}) {
      for (int i = 0; i < 10; ++i) end.send(Rank{1}, forward_tag(i), numbered(i));
      end.leave(soon());
      ends[0].reset();
      return;
    }
    for (int i = 9; i >= 0; --i)
      EXPECT_TRUE(same(end.receive(Rank{0}, forward_tag(i), soon())[0], numbered(i)[0]));
    end.leave(soon());
  });
}

TEST_P(TransportConformance, EmptyThingsArriveAsTheyAre) {
  auto ends = connect(2);

  on_every_rank(ends, [&](Endpoint& end) {
    if (end.rank() == Rank{0}) {
      end.send(Rank{1}, forward_tag(0), TensorList());
      TensorList list;
      list.push_back(Tensor());
      list.push_back(Tensor(DType::I64, {0, 7}));
      list.push_back(filled(DType::F64, {}, 3));
      end.send(Rank{1}, forward_tag(1), std::move(list));
      return;
    }
    EXPECT_EQ(end.receive(Rank{0}, forward_tag(0), soon()).size(), 0U);
    const TensorList list = end.receive(Rank{0}, forward_tag(1), soon());
    ASSERT_EQ(list.size(), 3U);
    EXPECT_FALSE(list[0]);
    EXPECT_TRUE(same(list[1], Tensor(DType::I64, {0, 7})));
    EXPECT_TRUE(same(list[2], filled(DType::F64, {}, 3)));
  });
}

TEST_P(TransportConformance, ManyTensorsOfEveryTypeTravelTogether) {
  auto ends = connect(2);
  const auto make = [] {
    TensorList list;
    int number = 0;
    for (const DType dtype :
         {DType::F32, DType::F16, DType::BF16, DType::F64, DType::I32, DType::I64, DType::U8})
      for (const Dims& dims : {Dims{5}, Dims{2, 3}, Dims{1, 2, 3, 1, 2, 2}})
        list.push_back(filled(dtype, dims, number++));
    return list;
  };

  on_every_rank(ends, [&](Endpoint& end) {
    if (end.rank() == Rank{0}) return end.send(Rank{1}, forward_tag(0), make());
    const TensorList got = end.receive(Rank{0}, forward_tag(0), soon());
    const TensorList expected = make();
    ASSERT_EQ(got.size(), 21U);
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same(got[i], expected[i])) << i;
  });
}

TEST_P(TransportConformance, BigTensorsArriveWholeAndAligned) {
  auto ends = connect(2);
  const auto make = [](int number) { return filled(DType::F32, {1024, 4096}, number); };

  on_every_rank(ends, [&](Endpoint& end) {
    const Rank other{1 - end.rank().value};
    end.send(other, forward_tag(0), TensorList(make(end.rank().value)));
    const TensorList got = end.receive(other, forward_tag(0), soon());
    EXPECT_TRUE(same(got[0], make(other.value)));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(got[0].data()) % kAlignment, 0U);
  });
}

TEST_P(TransportConformance, EightRanks_ManySteps) {
  constexpr int kRanks = 8;
  auto ends = connect(kRanks);
  const auto number = [](std::uint64_t step, Rank from, Rank to) {
    return static_cast<int>(step) * 100 + from.value * 10 + to.value;
  };

  on_every_rank(ends, [&](Endpoint& end) {
    for (std::uint64_t step = 0; step < 20; ++step) {
      for (int i = 0; i < kRanks; ++i)
        if (i != end.rank().value)
          end.send(Rank{i}, forward_tag(0, 1, step), numbered(number(step, end.rank(), Rank{i})));
      for (int i = kRanks - 1; i >= 0; --i) {
        const Rank from{i};
        if (from == end.rank()) continue;
        EXPECT_TRUE(same(end.receive(from, forward_tag(0, 1, step), soon())[0],
                         numbered(number(step, from, end.rank()))[0]));
      }
    }
    end.leave(soon());
  });
}

}  // namespace

}  // namespace millrace::testing_transport
