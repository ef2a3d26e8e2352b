// Room in the channels: when a sender needs a credit, and when it counts as full.
#include "transport/mailbox/mailbox.hpp"

#include <gtest/gtest.h>

namespace millrace::zeromq {
namespace {

constexpr Rank kOther{1};

MessageTag tag_of(std::uint64_t step) {
  MessageTag tag;
  tag.step = step;
  return tag;
}

/// Delivers and takes `count` messages of rank 1, from `step` on.
void pass_through(Mailbox& mailbox, std::uint64_t step, std::uint64_t count) {
  for (std::uint64_t i = step; i < step + count; ++i) {
    ASSERT_TRUE(mailbox.deliver(kOther, tag_of(i), {}));
    ASSERT_TRUE(mailbox.take(kOther, tag_of(i)));
  }
}

Mailbox receiver_of(const ChannelDepth& channel) {
  return {Rank{0}, 2, std::span(&channel, 1)};
}

TEST(Mailbox, HalfTaken_NotifiesTheSender) {
  Mailbox mailbox = receiver_of({kOther, Rank{0}, Direction::Forward, 4});
  pass_through(mailbox, 0, 1);
  EXPECT_FALSE(mailbox.owes_credit(kOther, Direction::Forward));
  pass_through(mailbox, 1, 1);
  EXPECT_TRUE(mailbox.owes_credit(kOther, Direction::Forward));
  EXPECT_EQ(mailbox.taken(kOther)[0], 2U);  // now it is reported
  EXPECT_FALSE(mailbox.owes_credit(kOther, Direction::Forward));
}

TEST(Mailbox, AnsweredSender_NeedsNoCredit) {
  Mailbox answered = receiver_of({kOther, Rank{0}, Direction::Forward, 1, true});
  pass_through(answered, 0, 10);
  EXPECT_FALSE(answered.owes_credit(kOther, Direction::Forward));

  Mailbox unbounded(Rank{0}, 2, {});
  pass_through(unbounded, 0, 10);
  EXPECT_FALSE(unbounded.owes_credit(kOther, Direction::Forward));
}

TEST(Mailbox, FullChannel_ReopensOnCredit) {
  const ChannelDepth channel{Rank{0}, kOther, Direction::Forward, 2};
  Mailbox mailbox(Rank{0}, 2, std::span(&channel, 1));
  EXPECT_TRUE(mailbox.try_room(kOther, Direction::Forward));
  EXPECT_TRUE(mailbox.try_room(kOther, Direction::Forward));
  EXPECT_FALSE(mailbox.try_room(kOther, Direction::Forward));

  const std::uint64_t question = mailbox.next_question(kOther);
  EXPECT_FALSE(mailbox.try_room_after(kOther, Direction::Forward, question));  // no answer yet
  mailbox.credit(kOther, {3, 0, 0});  // more than was sent: a lie, ignored
  EXPECT_FALSE(mailbox.try_room_after(kOther, Direction::Forward, question));
  mailbox.credit(kOther, {1, 0, 0});
  EXPECT_TRUE(mailbox.try_room_after(kOther, Direction::Forward, question));

  mailbox.answer(kOther, question);
  EXPECT_THROW((void)mailbox.try_room_after(kOther, Direction::Forward, question), TransportError);
}

}  // namespace
}  // namespace millrace::zeromq
