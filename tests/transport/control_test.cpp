// Control frames: every kind goes there and back, every field has its bounds, and any part of a
// frame is changed on the way is noticed.
#include <vector>

#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/transport/listener.hpp"
#include "transport/control_campaign.hpp"
#include "transport/repetitions.hpp"
#include "transport/wire/frame.hpp"

namespace millrace {
namespace {

Refusal decoded(const ControlBytes& bytes, Control& control) {
  Envelope envelope;
  return decode(bytes.header,
                std::as_bytes(std::span(bytes.text)),
                expectation_of_controls(),
                envelope,
                control);
}

/// The honest frame with one byte of its header changed, checksum repaired.
Refusal with_byte(const Control& honest, std::size_t at, int value) {
  ControlBytes bytes = encode(envelope_of_controls(), honest);
  bytes.header[at] = static_cast<std::byte>(value);
  repair_checksum(bytes.header);
  Control control;
  return decoded(bytes, control);
}

TEST(Control, EveryKindSaysTheSameAfterTheWay) {
  for (std::uint64_t seed = 0; seed < 200; ++seed)
    for (const Control& sent : honest_controls(seed)) {
      const ControlBytes bytes = encode(envelope_of_controls(), sent);
      Envelope envelope;
      Control received;
      ASSERT_EQ(decode(bytes.header,
                       std::as_bytes(std::span(bytes.text)),
                       expectation_of_controls(),
                       envelope,
                       received),
                Refusal::None)
          << sent.index();
      EXPECT_EQ(envelope, envelope_of_controls());
      ASSERT_EQ(received.index(), sent.index());
      EXPECT_EQ(encode(envelope, received).header, bytes.header);
      EXPECT_EQ(encode(envelope, received).text, bytes.text);
    }
}

TEST(Control, ItsFieldsArriveUnderTheirOwnNames) {
  Control received;
  ASSERT_EQ(decoded(encode(envelope_of_controls(), Probe{5, 6, 7}), received), Refusal::None);
  EXPECT_EQ(std::get<Probe>(received), (Probe{5, 6, 7}));
  ASSERT_EQ(decoded(encode(envelope_of_controls(), Nack{8, 9}), received), Refusal::None);
  EXPECT_EQ(std::get<Nack>(received), (Nack{8, 9}));
  const Abort abort{FailureCause::Hang, "rank 1 hangs"};
  ASSERT_EQ(decoded(encode(envelope_of_controls(), abort), received), Refusal::None);
  EXPECT_EQ(std::get<Abort>(received), abort);
}

TEST(Control, EveryFlippedHeaderBitIsRefused) {
  for (const Control& honest : honest_controls(1)) {
    const ControlBytes good = encode(envelope_of_controls(), honest);
    for (std::size_t bit = 0; bit < kHeaderBytes * 8; ++bit) {
      ControlBytes bad = good;
      bad.header[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
      Control control;
      ASSERT_NE(decoded(bad, control), Refusal::None) << "bit " << bit;
    }
  }
}

TEST(Control, EachFieldIsHeldToItsBounds) {
  EXPECT_EQ(with_byte(Probe{}, 93, 0x80), Refusal::Bounds);  // obeyed below 0
  EXPECT_EQ(with_byte(Nack{}, 82, 0), Refusal::Bounds);      // questions begin with 1
  EXPECT_EQ(with_byte(Abort{}, 74, 4), Refusal::Enumeration);
  const Progress progress;
  EXPECT_EQ(with_byte(progress, 81, 0x20), Refusal::Bounds);    // an age of 73 years
  EXPECT_EQ(with_byte(progress, 82, 6), Refusal::Enumeration);  // doing
  EXPECT_EQ(with_byte(progress, 83, 2), Refusal::Enumeration);  // of a unit
  EXPECT_EQ(with_byte(progress, 88, 0x80), Refusal::Bounds);    // peer below -1
  EXPECT_EQ(with_byte(progress, 89, 7), Refusal::Bounds);       // a bell in the action's name
  EXPECT_EQ(with_byte(progress, 90, 'F'), Refusal::Bounds);     // a letter after its end
}

TEST(Control, WhatAKindDoesNotUseIsZero) {
  for (const Control& honest : honest_controls(2))
    EXPECT_EQ(with_byte(honest, kChecksumAt - 1, 1), Refusal::Reserved) << honest.index();
}

TEST(Control, ATextIsHeldToItsSizeAndHash) {
  ControlBytes bytes = encode(envelope_of_controls(), Hello{"rank=1"});
  Control control;
  bytes.text = "rank=2";
  EXPECT_EQ(decoded(bytes, control), Refusal::Payload);
  bytes.text = "rank=11";
  EXPECT_EQ(decoded(bytes, control), Refusal::Size);
  EXPECT_EQ(decoded(encode(envelope_of_controls(), Hello{std::string(65, 'x')}), control),
            Refusal::Size);
  bytes = encode(envelope_of_controls(), Ack{});
  bytes.text = "no text belongs here";
  EXPECT_EQ(decoded(bytes, control), Refusal::Size);
}

TEST(Control, AnotherVersionIsRefusedBeforeItIsRead) {
  for (const Control& honest : honest_controls(3))
    EXPECT_EQ(with_byte(honest, 4, kProtocolVersion - 1), Refusal::Version);
}

TEST(Control, AFrameThatCarriesATensorIsNone) {
  EXPECT_EQ(with_byte(Bye{}, 72, static_cast<int>(FrameKind::Forward)), Refusal::State);
  EXPECT_EQ(with_byte(Bye{}, 72, 0), Refusal::Enumeration);
  EXPECT_EQ(with_byte(Bye{}, 72, 15), Refusal::Enumeration);
}

TEST(Control, NumberOutOfRange_SenderRejects) {
  EXPECT_THROW((void)encode({}, Nack{0, 0}), InvalidArgument);
  EXPECT_THROW((void)encode({}, Probe{0, 0, -1}), InvalidArgument);
}

TEST(Control, AnyActivity_IsReadBack) {
  Progress sent;
  sent.activity.what = {'F', '\n', '\x01'};
  sent.age = std::chrono::nanoseconds(-5);
  sent.activity.longest = std::chrono::nanoseconds::max();
  sent.activity.tag.stage = Stage{70'000};
  sent.activity.tag.micro_batch = MicroBatch{-1};
  Control received;

  ASSERT_EQ(decoded(encode(envelope_of_controls(), sent), received), Refusal::None);

  const Activity& reported = std::get<Progress>(received).activity;
  EXPECT_STREQ(reported.what.data(), "F??");
  EXPECT_EQ(std::get<Progress>(received).age.count(), 0);
  EXPECT_EQ(reported.longest.count(), std::int64_t{1} << 55);
  EXPECT_EQ(reported.tag.stage, Stage{65'535});
  EXPECT_EQ(reported.tag.micro_batch, MicroBatch{0});
}

TEST(ControlCampaign, NothingIsTakenThatNobodyCouldHaveSent) {
  const ControlCampaign campaign = run_control_campaign(1, testing_transport::times(300'000));

  EXPECT_EQ(campaign.fault, "");
  // The campaign must reach both sides of every check to mean anything.
  EXPECT_GT(campaign.accepted, 10'000U);
  for (const Refusal refusal : {Refusal::Magic,
                                Refusal::Version,
                                Refusal::Checksum,
                                Refusal::Enumeration,
                                Refusal::Reserved,
                                Refusal::Job,
                                Refusal::Epoch,
                                Refusal::Edge,
                                Refusal::Bounds,
                                Refusal::Size,
                                Refusal::State,
                                Refusal::Payload})
    EXPECT_GT(campaign.refused[static_cast<std::size_t>(refusal)], 0U) << name_of(refusal);
}

}  // namespace
}  // namespace millrace
