// Shared memory: the conformance suites between threads and between processes, and where received
// tensors lie.
#include "millrace/transport/shared_memory.hpp"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include <gmock/gmock.h>

#include "millrace/transport/listener.hpp"
#include "millrace/transport/private_directory.hpp"
#include "transport/conformance.hpp"
#include "transport/meeting_conformance.hpp"

namespace millrace {
namespace {

using testing_transport::Endpoints;
using testing_transport::forward_tag;
using testing_transport::Gathering;
using testing_transport::ListenersUnderTest;
using testing_transport::MeetingConformance;
using testing_transport::same;
using testing_transport::soon;
using testing_transport::TransportConformance;
using testing_transport::TransportUnderTest;

/// The sockets' names are needed until all ranks know each other, and a rank's file as long as it
/// lives.
class Mesh {
 public:
  explicit Mesh(SharedMemoryOptions options = {}) {
    options.directory = directory_.path();
    ends = shared_memory_mesh(options);
  }

 private:
  PrivateDirectory directory_{std::filesystem::temp_directory_path()};

 public:
  Endpoints ends;
};

/// Endpoints that keep their mesh's directory.
Endpoints connected(int world, const std::vector<ChannelDepth>& depths) {
  static std::vector<std::unique_ptr<PrivateDirectory>> kept;
  kept.push_back(std::make_unique<PrivateDirectory>(std::filesystem::temp_directory_path()));
  SharedMemoryOptions options;
  options.world = world;
  options.depths = depths;
  options.directory = kept.back()->path();
  return shared_memory_mesh(options);
}

/// This process as one rank.
std::unique_ptr<Endpoint> joined(Rank rank,
                                 int world,
                                 const std::vector<ChannelDepth>& depths,
                                 const std::string& directory,
                                 std::uint32_t number) {
  SharedMemoryOptions options;
  options.rank = rank;
  options.world = world;
  options.directory = directory;
  options.depths = depths;
  options.epoch = number;
  return meet({.url = "ipc://" + directory + "/rendezvous-" + std::to_string(number)},
              SharedMemoryListener(options));
}

Gathering listening(int world, const std::string& directory) {
  Gathering all{{}, "ipc://" + directory + "/rendezvous"};
  SharedMemoryOptions options;
  options.world = world;
  options.directory = directory;
  for (int i = 0; i < world; ++i) {
    options.rank = Rank{i};
    all.listeners.push_back(std::make_unique<SharedMemoryListener>(options));
  }
  return all;
}

/// Lines of this process's map that are shared memory of ours.
int mapped_regions() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);)
    count += line.find("memfd:millrace") != std::string::npos ? 1 : 0;
  return count;
}

Tensor bytes_of(std::int64_t size, int value) {
  Tensor tensor(DType::U8, {size});
  std::memset(tensor.data(), value, tensor.bytes());
  return tensor;
}

TEST(SharedMemoryPayloads, LargeTensors_AreUsedInPlace) {
  const Mesh mesh({{{.world = 2}}});
  for (const std::int64_t size : {100, 4096, 1 << 14, 1 << 20, (1 << 20) + 36}) {
    mesh.ends[0]->send(Rank{1}, forward_tag(0), TensorList(bytes_of(size, 5)));
    TensorList got = mesh.ends[1]->receive(Rank{0}, forward_tag(0), soon());
    EXPECT_EQ(got[0].margins() == Margins::None, size >= 1 << 14) << size;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(got[0].data()) % kAlignment, 0U);
    EXPECT_TRUE(same(got[0], bytes_of(size, 5)));
    got[0].fill_zero();  // it is ours
    EXPECT_EQ(got[0].as<std::uint8_t>().back(), 0);
  }
}

TEST(SharedMemoryPayloads, Memory_IsReusedInAnyOrder) {
  const Mesh mesh({{{.world = 2}}});
  std::vector<Tensor> held;
  int regions = 0;
  for (int i = 0; i < 200; ++i) {
    mesh.ends[0]->send(Rank{1}, forward_tag(i), TensorList(bytes_of(1 << 18, i)));
    held.push_back(std::move(mesh.ends[1]->receive(Rank{0}, forward_tag(i), soon())[0]));
    if (held.size() > 6) held.erase(held.begin() + (i * 5) % 7);
    if (i == 20) regions = mapped_regions();
  }
  for (const Tensor& tensor : held)
    EXPECT_EQ(tensor.as<std::uint8_t>().front(), tensor.as<std::uint8_t>().back());
  EXPECT_EQ(mapped_regions(), regions);
}

/// Of `bytes` bytes, at most three at once.
std::vector<ChannelDepth> planned(std::size_t bytes) {
  return {{Rank{0}, Rank{1}, Direction::Forward, 8, false, {{bytes, 3}}}};
}

/// Made by rank 0 for rank 1.
SharedBytes shared_by(const Mesh& mesh) {
  return mesh.ends[0]->shared_bytes().at(0);
}

TEST(SharedMemoryPayloads, PlannedMemory_ExistsFromTheFirstMessage) {
  const std::size_t size = 1 << 18;
  const auto depths = planned(size);
  const Mesh mesh({{{.world = 2}, depths}});
  std::vector<Tensor> held;
  int regions = 0;
  for (int i = 0; i < 20; ++i) {
    const std::int64_t bytes = i % 3 == 0 ? 20'000 : 1 << 18;  // smaller ones, too
    mesh.ends[0]->send(Rank{1}, forward_tag(i), TensorList(bytes_of(bytes, i)));
    if (held.size() > 1) held.erase(held.begin() + i % 2);
    held.push_back(std::move(mesh.ends[1]->receive(Rank{0}, forward_tag(i), soon())[0]));
    if (i == 0) regions = mapped_regions();
  }
  EXPECT_EQ(mapped_regions(), regions);
  EXPECT_EQ(shared_by(mesh).receiver, Rank{1});
  EXPECT_EQ(shared_by(mesh).of_passes, planned_shared_bytes(depths, Rank{0}, Rank{1}));
  EXPECT_EQ(shared_by(mesh).of_passes, 3 * size);
  EXPECT_EQ(shared_by(mesh).of_collectives, 0U);
}

TEST(SharedMemoryPayloads, UnplannedMessage_AllocatesMemory) {
  const Mesh mesh({{{.world = 2}, planned(1 << 18)}});
  MessageTag sum;
  sum.direction = Direction::Collective;
  mesh.ends[0]->send(Rank{1}, sum, TensorList(bytes_of(1 << 20, 7)));
  EXPECT_EQ(shared_by(mesh).of_passes, 0U);  // before there is one
  EXPECT_EQ(shared_by(mesh).of_collectives, std::size_t{1} << 20U);
  mesh.ends[0]->send(Rank{1}, forward_tag(0), TensorList(bytes_of(1 << 20, 8)));
  EXPECT_EQ(shared_by(mesh).of_passes, (std::size_t{3} << 18U) + (std::size_t{1} << 20U));
  EXPECT_TRUE(same(mesh.ends[1]->receive(Rank{0}, sum, soon())[0], bytes_of(1 << 20, 7)));
  EXPECT_TRUE(
      same(mesh.ends[1]->receive(Rank{0}, forward_tag(0), soon())[0], bytes_of(1 << 20, 8)));
  EXPECT_EQ(planned_shared_bytes(planned(1), Rank{1}, Rank{0}), 0U);
}

TEST(SharedMemoryPayloads, Tensor_OutlivesBothEndpoints) {
  TensorList received;
  {
    const Mesh mesh({{{.world = 2}}});
    mesh.ends[0]->send(Rank{1}, forward_tag(0), TensorList(bytes_of(1 << 20, 3)));
    received = mesh.ends[1]->receive(Rank{0}, forward_tag(0), soon());
  }
  EXPECT_TRUE(same(received[0], bytes_of(1 << 20, 3)));
  EXPECT_GT(mapped_regions(), 0);
  received.clear();
  EXPECT_EQ(mapped_regions(), 0);
}

TEST(SharedMemoryPayloads, MoreThanARingHoldsWaitsForRoom) {
  const Mesh mesh({{{.world = 2}}});
  constexpr int kMessages = 1000;
  for (int i = 0; i < kMessages; ++i)
    mesh.ends[0]->send(Rank{1}, forward_tag(i), TensorList(bytes_of(8, i)));
  for (int i = kMessages - 1; i >= 0; --i)
    EXPECT_TRUE(same(mesh.ends[1]->receive(Rank{0}, forward_tag(i), soon())[0], bytes_of(8, i)));
}

TEST(SharedMemoryPayloads, MoreTensorsThanSlots_Arrive) {
  const Mesh mesh({{{.world = 2}}});
  constexpr int kTensors = 5000;
  TensorList list;
  for (int i = 0; i < kTensors; ++i) list.push_back(bytes_of(1 << 14, i));
  mesh.ends[0]->send(Rank{1}, forward_tag(0), std::move(list));
  const TensorList got = mesh.ends[1]->receive(Rank{0}, forward_tag(0), soon());
  ASSERT_EQ(got.size(), static_cast<std::size_t>(kTensors));
  for (std::size_t i = 0; i < got.size(); ++i)
    ASSERT_EQ(got[i].as<std::uint8_t>().back(), static_cast<std::uint8_t>(i)) << i;
}

INSTANTIATE_TEST_SUITE_P(SharedMemory,
                         TransportConformance,
                         testing::Values(TransportUnderTest{"shared memory", connected}));
INSTANTIATE_TEST_SUITE_P(SharedMemory,
                         MeetingConformance,
                         testing::Values(ListenersUnderTest{"shared memory", listening}));
INSTANTIATE_TEST_SUITE_P(SharedMemoryProcesses,
                         TransportConformance,
                         testing::Values(TransportUnderTest{
                             "shared memory, a process per rank", {}, joined}));

}  // namespace
}  // namespace millrace
