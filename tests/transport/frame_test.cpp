// The frame header and the receiver's state machine: round trips, every flipped bit, every refusal,
// sizes before memory, and a seeded campaign of hostile frames against a model.
#include "transport/wire/frame.hpp"

#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/core/random.hpp"
#include "transport/frame_campaign.hpp"
#include "transport/repetitions.hpp"
#include "transport/zeromq/link.hpp"

namespace millrace {
namespace {

using zeromq::ReceiveLink;
using zeromq::RetainedFrame;
using zeromq::SendLink;

DataHeader sample_header() {
  DataHeader header;
  header.job = 0x0123'4567'89AB'CDEF;
  header.epoch = 7;
  header.source = Rank{2};
  header.destination = Rank{5};
  header.sequence = 0;
  header.tag = {12, Direction::Backward, Replica{1}, Stage{3}, MicroBatch{70000}, Slice{2}, 3};
  header.tensor_index = 0;
  header.tensor_count = 2;
  header.dtype = DType::F32;
  header.dims = Dims{4, 8};
  header.payload_bytes = 128;
  header.acknowledged = 0xFEDC'BA98'7654'3210;
  header.taken = {1, std::uint64_t{1} << 40U, 3};
  header.wished_lead = 63;
  return header;
}

const FrameExpectation kExpected{0x0123'4567'89AB'CDEF, 7, Rank{2}, Rank{5}, 1U << 20U};

Refusal decode_changed(const DataHeader& header, std::size_t part = 128) {
  DataHeader out;
  return decode(encode(header), part, kExpected, out);
}

TEST(Message, HashWhileCopying_IsThatOfTheWhole) {
  for (const std::size_t size : {0U, 1U, 240U, 16'384U, 16'385U, 100'000U}) {
    std::vector<std::byte> from(size), to(size);
    for (std::size_t i = 0; i < size; ++i) from[i] = static_cast<std::byte>(i * i);
    EXPECT_EQ(copy_hashed(from, to.data()), payload_hash(from)) << size;
    EXPECT_EQ(from, to);
  }
}

TEST(Message, EveryFieldSurvivesTheRoundTrip) {
  const DataHeader sent = sample_header();

  DataHeader received;
  ASSERT_EQ(decode(encode(sent), 128, kExpected, received), Refusal::None);

  EXPECT_EQ(received, sent);
}

TEST(Message, BytesOfAHeaderAreFixedForever) {
  const FrameBytes bytes = encode(sample_header());

  // "RMIL", version 5, 160, then the job: little-endian on every host.
  const std::vector<int> start = {0x52, 0x4D, 0x49, 0x4C, 5, 0, 160, 0, 0xEF, 0xCD, 0xAB, 0x89};
  for (std::size_t i = 0; i < start.size(); ++i)
    EXPECT_EQ(std::to_integer<int>(bytes[i]), start[i]) << "byte " << i;
  EXPECT_EQ(std::to_integer<int>(bytes[20]), 2);
  EXPECT_EQ(std::to_integer<int>(bytes[72]), static_cast<int>(FrameKind::Backward));
}

TEST(Message, EveryFlippedHeaderBitIsRefused) {
  const FrameBytes good = encode(sample_header());
  for (std::size_t bit = 0; bit < kHeaderBytes * 8; ++bit) {
    FrameBytes bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    DataHeader out;
    ASSERT_NE(decode(bad, 128, kExpected, out), Refusal::None) << "bit " << bit;
  }
}

TEST(Message, EveryShorterHeaderIsRefusedBySize) {
  const FrameBytes good = encode(sample_header());
  DataHeader out;
  for (std::size_t size = 0; size < kHeaderBytes; ++size)
    ASSERT_EQ(decode(std::span(good).first(size), 128, kExpected, out), Refusal::HeaderSize);
}

TEST(Message, EachFieldHasItsOwnRefusal) {
  const auto with = [](auto change) {
    DataHeader header = sample_header();
    change(header);
    return header;
  };

  EXPECT_EQ(decode_changed(with([](auto& h) { h.job = 1; })), Refusal::Job);
  EXPECT_EQ(decode_changed(with([](auto& h) { h.epoch = 6; })), Refusal::Epoch);
  EXPECT_EQ(decode_changed(with([](auto& h) { h.source = Rank{3}; })), Refusal::Edge);
  EXPECT_EQ(decode_changed(with([](auto& h) { h.destination = Rank{2}; })), Refusal::Edge);
  EXPECT_EQ(decode_changed(with([](auto& h) { h.tensor_index = 2; })), Refusal::Shape);
  EXPECT_EQ(decode_changed(with([](auto& h) { h.absent = true; })), Refusal::Shape);
  EXPECT_EQ(decode_changed(with([](auto& h) { h.dims = Dims{4, 9}; })), Refusal::Size);
  EXPECT_EQ(decode_changed(sample_header(), 127), Refusal::Size);
}

TEST(Message, OverflowingShape_IsRejectedBeforeAllocation) {
  DataHeader header = sample_header();
  header.dims = Dims{std::int64_t{1} << 40, std::int64_t{1} << 40};
  header.payload_bytes = 0;

  EXPECT_EQ(decode_changed(header, 0), Refusal::Shape);
}

TEST(Message, APayloadAboveTheAgreedSizeIsRefused) {
  DataHeader header = sample_header();
  header.dims = Dims{(1 << 18) + 1};
  header.payload_bytes = (1U << 20U) + 4;

  EXPECT_EQ(decode_changed(header, (1U << 20U) + 4), Refusal::Size);
}

TEST(Message, TensorAfterLead_FillsItsPart) {
  for (int lead = 1; lead < 64; ++lead)
    for (std::uint64_t bytes = 0; bytes < 200; ++bytes) {
      const std::uint64_t part = padded_bytes(lead, bytes);
      ASSERT_EQ((part + 48) % 64, 0U) << lead << ", " << bytes;
      ASSERT_GE(part, static_cast<unsigned>(lead) + bytes);
      ASSERT_LT(part, static_cast<unsigned>(lead) + bytes + 64);
    }
  EXPECT_EQ(padded_bytes(0, 77), 77U);
}

TEST(Message, AHeaderWithALeadIsHeldToItsPart) {
  DataHeader header = sample_header();
  header.lead = 24;
  DataHeader received;
  ASSERT_EQ(decode(encode(header), 208, kExpected, received), Refusal::None);
  EXPECT_EQ(received, header);

  EXPECT_EQ(decode_changed(header, 128), Refusal::Size);
  EXPECT_EQ(decode_changed(header, 207), Refusal::Size);
  FrameBytes bits = encode(header);
  bits[155] = std::byte{64};
  repair_checksum(bits);
  EXPECT_EQ(decode(bits, 208, kExpected, received), Refusal::Reserved);
  header.absent = true;
  header.dims = Dims();
  header.payload_bytes = 0;
  EXPECT_EQ(decode_changed(header, padded_bytes(24, 0)), Refusal::Shape);
}

TEST(Message, Hash_IsOfTheTensorAfterItsLead) {
  ReceiveLink link(kExpected, 4);
  DataHeader header = sample_header();
  header.lead = 8;
  std::vector<std::byte> part(padded_bytes(8, 128), std::byte{7});
  header.hashed = true;
  header.payload_hash = payload_hash(tensor_bytes(header, part));
  ASSERT_EQ(tensor_bytes(header, part).data(), part.data() + 8);

  part[8] ^= std::byte{1};
  EXPECT_EQ(link.take(encode(header), part).refusal, Refusal::Payload);
  part[8] ^= std::byte{1};
  part[7] ^= std::byte{1};  // before the tensor: not read
  EXPECT_EQ(link.take(encode(header), part).refusal, Refusal::None);
}

TEST(Message, NumberTooLarge_SenderRejects) {
  DataHeader header = sample_header();
  header.tag.stage = Stage{65536};
  EXPECT_THROW((void)encode(header), InvalidArgument);

  header = sample_header();
  header.lead = 64;
  EXPECT_THROW((void)encode(header), InvalidArgument);
}

TEST(Message, EveryRefusalHasAnAnswerAndAName) {
  for (int i = 1; i < kRefusals; ++i) {
    const auto refusal = static_cast<Refusal>(i);
    EXPECT_NE(answer_to(refusal), Answer::Accept) << name_of(refusal);
    EXPECT_STRNE(name_of(refusal), "?");
  }
}

TEST(ReceiveLink, Gap_IsRequestedAgainAfterProbe) {
  ReceiveLink link(kExpected, 4);
  DataHeader header = sample_header();
  header.tensor_count = 1;
  const std::vector<std::byte> payload(128);
  const auto arrive = [&](std::uint64_t sequence) {
    header.sequence = sequence;
    return link.take(encode(header), payload).answer;
  };

  EXPECT_EQ(arrive(0), Answer::Accept);
  EXPECT_EQ(arrive(2), Answer::AskAgain);
  EXPECT_EQ(arrive(3), Answer::Drop);
  const ControlBytes probe = encode(sample_header(), Probe{.sequence = 4});
  EXPECT_EQ(link.take(probe.header, {}).answer, Answer::AskAgain);
  EXPECT_EQ(arrive(1), Answer::Accept);
  EXPECT_EQ(arrive(1), Answer::DropAcknowledge);
  EXPECT_EQ(link.expected(), 2U);
}

TEST(ReceiveLink, EarlyProbes_AreNoAttempts) {
  constexpr int kAttempts = 2;
  ReceiveLink link(kExpected, kAttempts);
  const auto arrive = [&](std::int32_t obeyed) {
    const Probe probe{.sequence = 4, .obeyed = obeyed};
    return link.take(encode(sample_header(), probe).header, {}).answer;
  };

  for (int i = 0; i < 10; ++i) {  // all that waited after the data that was lost
    EXPECT_EQ(arrive(0), Answer::AskAgain);
    EXPECT_EQ(link.asks(), 1);
  }
  EXPECT_EQ(arrive(1), Answer::AskAgain);  // after what was repeated, which is lost too
  EXPECT_EQ(link.asks(), 2);
  EXPECT_EQ(arrive(2), Answer::Abort);
}

TEST(ReceiveLink, AbortsWhenTheSameFrameStaysDamaged) {
  ReceiveLink link(kExpected, 2);
  DataHeader header = sample_header();
  header.hashed = true;
  header.payload_hash = 1;
  const std::vector<std::byte> payload(128);

  EXPECT_EQ(link.take(encode(header), payload).answer, Answer::AskAgain);
  EXPECT_EQ(link.take(encode(header), payload).answer, Answer::AskAgain);
  EXPECT_EQ(link.take(encode(header), payload).answer, Answer::Abort);
}

TEST(ReceiveLink, StrayTensorOrHugeShape_IsRejected) {
  ReceiveLink link(kExpected, 2);
  DataHeader header = sample_header();
  header.tensor_count = 0;
  header.tensor_index = 0;
  header.dims = Dims();
  header.payload_bytes = 0;
  EXPECT_EQ(link.take(encode(header), {}).refusal, Refusal::Shape);

  header = sample_header();
  header.dtype = DType::U8;
  header.dims = Dims{std::int64_t{1} << 40, std::int64_t{1} << 23, 0};  // 0 bytes
  header.payload_bytes = 0;
  EXPECT_EQ(link.take(encode(header), {}).refusal, Refusal::Shape);
}

TEST(ReceiveLink, TensorsOfTwoMessagesNeverMix) {
  ReceiveLink link(kExpected, 2);
  DataHeader header = sample_header();  // tensor 0 of 2
  const std::vector<std::byte> payload(128);
  ASSERT_EQ(link.take(encode(header), payload).answer, Answer::Accept);
  ASSERT_TRUE(link.inside_message());

  header.sequence = 1;
  header.tensor_index = 1;
  header.tag.micro_batch = MicroBatch{1};

  EXPECT_EQ(link.take(encode(header), payload).refusal, Refusal::State);
}

TEST(ReceiveLink, ControlFrames_OnlyProbesFollowData) {
  ReceiveLink link(kExpected, 2);
  const auto probed = link.take(encode(sample_header(), Probe{0, 7, 0}).header, {});
  EXPECT_EQ(probed.answer, Answer::DropAcknowledge);
  EXPECT_EQ(probed.probe, (Probe{0, 7, 0}));
  EXPECT_EQ(probed.header.acknowledged, sample_header().acknowledged);

  EXPECT_EQ(link.take(encode(sample_header(), Ack{}).header, {}).refusal, Refusal::State);
}

TEST(SendLink, KeepsFramesUntilAcknowledgedAndNobodyReadsThem) {
  SendLink link;
  for (int i = 0; i < 3; ++i) link.add(sample_header(), Tensor(DType::F32, Dims{4, 8}));
  link.each_from(1, [](RetainedFrame& frame) { frame.flights = 1; });

  link.acknowledge(7);  // from the future: ignored
  EXPECT_EQ(link.oldest(), 0U);
  link.acknowledge(2);
  link.sweep();

  EXPECT_EQ(link.oldest(), 2U);
  EXPECT_FALSE(link.settled());
  link.acknowledge(3);
  EXPECT_TRUE(link.settled());
  EXPECT_FALSE(link.landed());
}

TEST(FrameCampaign, MillionsOfHostileFramesNeverPassTheModel) {
  const CampaignResult result = run_frame_campaign(1, testing_transport::times(1'000'000));

  EXPECT_EQ(result.disagreements, 0U) << result.first;
  // The campaign must reach both sides of every check to mean anything.
  EXPECT_GT(result.accepted, 10'000U);
  for (int i = static_cast<int>(Refusal::HeaderSize); i < kRefusals; ++i) {
    if (static_cast<Refusal>(i) == Refusal::Bounds) continue;  // of control frames
    EXPECT_GT(result.refused[static_cast<std::size_t>(i)], 0U) << name_of(static_cast<Refusal>(i));
  }
}

}  // namespace
}  // namespace millrace
