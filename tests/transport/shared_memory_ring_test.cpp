// The parts of shared memory one by one: a ring between two threads, of which the reader believes
// nothing; slots that become free in any order; memory that must be what it was given as.
#include <algorithm>
#include <array>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>

#include "transport/conformance.hpp"
#include "transport/ring_campaign.hpp"
#include "transport/shared_memory/ring.hpp"
#include "transport/shared_memory/slots.hpp"

namespace millrace::shared_memory {
namespace {

using testing::HasSubstr;
using testing_transport::forward_tag;

std::string failure_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const TransportError& error) {
    return error.what();
  }
  return "no TransportError";
}

/// An entry all of whose words follow from a number.
RingEntry entry_of(std::uint64_t number) {
  RingEntry entry;
  for (std::size_t i = 0; i < entry.header.size(); ++i)
    entry.header[i] = static_cast<std::byte>(number * 31 + i);
  entry.place = {number * 64, number, static_cast<std::uint32_t>(number), 7, 9};
  return entry;
}

TEST(SharedMemoryRing, Entries_ArriveWholeAndInOrder) {
  constexpr std::uint64_t kEntries = 20'000;
  const auto memory = std::make_unique<RingMemory>();
  std::atomic<std::uint64_t> consumed{0};
  std::jthread writing([&] {
    RingWriter writer(*memory);
    for (std::uint64_t i = 0; i < kEntries; ++i) {
      while (writer.full()) {
        writer.heed(consumed.load(std::memory_order_acquire));
        std::this_thread::yield();
      }
      writer.put(entry_of(i));
    }
  });

  RingReader reader(*memory);
  for (std::uint64_t i = 0; i < kEntries;) {
    const auto entry = reader.take();
    if (!entry) {
      std::this_thread::yield();
      continue;
    }
    const RingEntry expected = entry_of(i++);
    ASSERT_EQ(entry->header, expected.header);
    ASSERT_EQ(entry->place, expected.place);
    consumed.store(reader.consumed(), std::memory_order_release);
  }
  EXPECT_FALSE(reader.has_news());
}

TEST(SharedMemoryRing, WhatIsNotCountedWasNeverWritten) {
  const auto memory = std::make_unique<RingMemory>();
  memory->entries[0][0] = 77;  // its writer died here

  EXPECT_FALSE(RingReader(*memory).take());
}

TEST(SharedMemoryRing, ImpossibleCounter_IsRejected) {
  for (const std::uint64_t claimed :
       {kRingEntries + 1, std::uint64_t{1} << 63U, ~std::uint64_t{0}}) {
    const auto memory = std::make_unique<RingMemory>();
    memory->published = claimed;
    EXPECT_EQ(failure_of([&] { (void)RingReader(*memory).take(); }),
              "a ring of 256 frames claims to hold " + std::to_string(claimed));
  }
  const auto memory = std::make_unique<RingMemory>();
  RingReader reader(*memory);
  memory->published = 2;
  EXPECT_TRUE(reader.take());
  memory->published = 0;  // and back
  EXPECT_THAT(failure_of([&] { (void)reader.take(); }), HasSubstr("claims to hold"));
}

TEST(SharedMemoryRing, ReaderAheadOfWriter_IsRejected) {
  const auto memory = std::make_unique<RingMemory>();
  RingWriter writer(*memory);
  for (std::uint64_t i = 0; i < 3; ++i) writer.put(entry_of(i));

  writer.heed(2);
  EXPECT_THAT(failure_of([&] { writer.heed(4); }), HasSubstr("where it had read 2 of 3"));
  EXPECT_THAT(failure_of([&] { writer.heed(1); }), HasSubstr("has read 1 frames"));
}

TEST(SharedMemoryRing, FullRing_ReopensOnRead) {
  const auto memory = std::make_unique<RingMemory>();
  RingWriter writer(*memory);
  for (std::uint64_t i = 0; i < kRingEntries; ++i) {
    EXPECT_FALSE(writer.full());
    writer.put(entry_of(i));
  }
  EXPECT_TRUE(writer.full());
  writer.heed(1);
  EXPECT_FALSE(writer.full());
}

/// A frame of a tensor of 64 bytes, its place somewhere.
RingEntry frame_at(const Place& place) {
  DataHeader header;
  header.destination = Rank{1};
  header.tag = forward_tag(0);
  header.tensor_count = 1;
  header.dims = {64};
  header.payload_bytes = 64;
  return {encode(header), place};
}

TEST(SharedMemoryFrames, APlaceOutsideOfTheSegmentsIsRefused) {
  const auto memory = std::make_unique<RingMemory>();
  const FrameExpectation expected{0, 0, Rank{0}, Rank{1}, 1 << 20};
  FrameReader reader(*memory, expected);
  reader.add(make_region(4096, Sharing::Write).memory);

  const auto most = std::uint64_t{0} - 64;
  for (const Place& place : {Place{0, 64, 1, 0, 1},
                             Place{4096, 64, 0, 0, 1},
                             Place{4032, 65, 0, 0, 1},
                             Place{most, 64, 0, 0, 1},
                             Place{0, most, 0, 0, 1},
                             Place{32, 64, 0, 0, 1},
                             Place{0, 64, 0, kSlots, 1},
                             Place{0, 64, Place::kNowhere, Place::kNowhere, 0}})
    EXPECT_NE(failure_of([&] { (void)reader.read(frame_at(place)); }), "no TransportError")
        << place.offset << " " << place.bytes;
  EXPECT_EQ(reader.read(frame_at({0, 128, 0, 0, 1})).refusal, Refusal::Size);
  EXPECT_EQ(reader.read(frame_at({4032, 64, 0, kSlots - 1, 1})).refusal, Refusal::None);
}

TEST(SharedMemoryFrames, Frame_IsTakenOnceInOrder) {
  const auto memory = std::make_unique<RingMemory>();
  FrameReader reader(*memory, {0, 0, Rank{0}, Rank{1}, 1 << 20});
  reader.add(make_region(4096, Sharing::Write).memory);
  const RingEntry entry = frame_at({0, 64, 0, 0, 1});

  EXPECT_TRUE(reader.read(entry).ends_message);
  EXPECT_EQ(reader.read(entry).refusal, Refusal::Duplicate);
  RingEntry damaged = entry;
  damaged.header[100] ^= std::byte{1};
  EXPECT_EQ(reader.read(damaged).refusal, Refusal::Checksum);
}

TEST(SharedMemoryFrames, HostileWriter_OnlyLegalFramesPass) {
  const RingResult result = run_ring_campaign(31, 4'000);

  EXPECT_EQ(result.wrong, "");
  EXPECT_GT(result.taken, 1'000);
  EXPECT_GT(result.refused, 1'000);
  EXPECT_TRUE(result.ended);
}

TEST(SharedMemoryFrames, LegalOnesAreAllTaken) {
  std::vector<std::uint8_t> input;
  for (int i = 0; i < 600; ++i)
    for (const int word : {i % 100 == 99 ? 6 : 3, 0, 0, 0})
      input.push_back(static_cast<std::uint8_t>(word));
  const RingResult result = run_ring_input(input);

  EXPECT_EQ(result.taken, 594);
  EXPECT_EQ(result.refused, 0);
}

/// Slots with a segment for such sizes, and what the receiver says of them.
struct Lent {
  Slots slots;
  std::unique_ptr<SendQueue> receivers = std::make_unique<SendQueue>();

  Slots::Taken take(std::size_t bytes, Payloads whose = Payloads::OfPasses) {
    slots.reclaim(*receivers);
    auto taken = slots.take(bytes, whose);
    if (!taken) {
      slots.add(Slots::segment_for(bytes).memory, bytes, whose);
      taken = slots.take(bytes, whose);
    }
    return *taken;
  }
  void release(const Slots::Taken& taken) const {
    receivers->released[taken.place.slot] = taken.place.use;
  }
};

TEST(SharedMemorySlots, AreReusedInAnyOrder) {
  Lent lent;
  std::vector<Slots::Taken> held;
  for (int i = 0; i < 5; ++i) held.push_back(lent.take(std::size_t{1} << 20U));
  for (std::size_t i = 0; i < held.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(held[i].memory, held[j].memory);
  EXPECT_EQ(lent.slots.segments(), 5U);

  lent.release(held[3]);
  EXPECT_EQ(lent.take(1'000'000).memory, held[3].memory);
  lent.release(held[3]);  // the use before: nothing is free
  EXPECT_NE(lent.take(1'000'000).memory, held[3].memory);
  EXPECT_EQ(lent.slots.segments(), 6U);
}

TEST(SharedMemorySlots, PlannedSlots_ServePassesOfAnySize) {
  Lent lent;
  const ChannelTensors tensors{1'000'000, 3};
  const std::size_t bytes = Slots::planned_bytes(tensors);
  lent.slots.plan(make_region(bytes, Sharing::Write).memory, tensors);
  for (const std::size_t size : {1'000'000U, 1U, 500'000U})
    EXPECT_EQ(lent.take(size).place.segment, 0U);
  EXPECT_EQ(lent.slots.bytes(Payloads::OfPasses), bytes);

  EXPECT_EQ(lent.take(1'000'000).place.segment, 1U);  // more than was planned
  EXPECT_EQ(lent.slots.bytes(Payloads::OfPasses), bytes + slot_bytes(1'000'000));
}

TEST(SharedMemorySlots, Planned_StayFreeOfCollectives) {
  Lent lent;
  const ChannelTensors tensors{1'000'000, 1};
  lent.slots.plan(make_region(Slots::planned_bytes(tensors), Sharing::Write).memory, tensors);
  const Slots::Taken sum = lent.take(1'000'000, Payloads::OfCollectives);
  EXPECT_EQ(sum.place.segment, 1U);
  EXPECT_EQ(lent.slots.bytes(Payloads::OfCollectives), slot_bytes(1'000'000));
  const Slots::Taken activation = lent.take(1'000'000);
  EXPECT_EQ(activation.place.segment, 0U);

  lent.release(sum);
  lent.release(activation);
  EXPECT_EQ(lent.take(1'000'000, Payloads::OfCollectives).place.segment, 1U);
}

TEST(SharedMemorySlots, PlannedSlots_LeaveEnoughForOthers) {
  Slots slots;
  const int most = static_cast<int>(kMostPlanned);
  EXPECT_FALSE(slots.can_plan({1, most + 1}));
  EXPECT_TRUE(slots.can_plan({1, most}));
  slots.plan(make_region(Slots::planned_bytes({1, 1}), Sharing::Write).memory, {1, 1});
  EXPECT_FALSE(slots.can_plan({1, most}));
}

TEST(SharedMemorySlots, LieOnBoundariesAndDoNotTouch) {
  Lent lent;
  std::vector<std::pair<std::byte*, std::size_t>> all;
  for (const std::size_t bytes : {1U, 63U, 4096U, 5000U, 65'536U, 65'537U, 70'001U, 300'000U, 64U})
    for (int i = 0; i < 3; ++i) {
      const Slots::Taken taken = lent.take(bytes);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(taken.memory) % kAlignment, 0U);
      std::memset(taken.memory, 1, bytes);
      for (const auto& [begin, size] : all)
        EXPECT_TRUE(taken.memory + bytes <= begin || begin + size <= taken.memory);
      all.emplace_back(taken.memory, bytes);
    }
}

TEST(SharedMemoryRegions, OtherKind_IsRejected) {
  const Region good = make_region(8192, Sharing::Read);
  EXPECT_EQ(map_region(good.file, 8192, Sharing::Read).bytes(), 8192U);
  EXPECT_THAT(failure_of([&] { (void)map_region(good.file, 4096, Sharing::Read); }),
              HasSubstr("what was given as shared memory of 4096 bytes is none"));
  // Only its owner writes to it.
  EXPECT_THAT(failure_of([&] { (void)map_region(good.file, 8192, Sharing::Write); }),
              HasSubstr("cannot map 8192 bytes"));
  EXPECT_EQ(::ftruncate(good.file.number(), 4096), -1);

  const Descriptor open(::memfd_create("can shrink", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(open.number(), 4096), 0);
  EXPECT_THAT(failure_of([&] { (void)map_region(open, 4096, Sharing::Read); }),
              HasSubstr("is none"));
  const Descriptor device(::open("/dev/zero", O_RDWR | O_CLOEXEC));
  EXPECT_THAT(failure_of([&] { (void)map_region(device, 0, Sharing::Read); }),
              HasSubstr("is none"));
}

}  // namespace
}  // namespace millrace::shared_memory
