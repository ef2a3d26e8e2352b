#include "transport/conformance.hpp"

#include <cstring>
#include <exception>
#include <filesystem>
#include <future>
#include <stdexcept>
#include <thread>

namespace millrace::testing_transport {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransportConformance);

using namespace std::chrono_literals;

/// Of a supervisor: far beyond every deadline of a test.
constexpr auto kPatience = 120s;

void on_every_rank(Endpoints& endpoints, const std::function<void(Endpoint&)>& work) {
  std::vector<std::string> failures(endpoints.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < endpoints.size(); ++i) {
      if (!endpoints[i]) continue;
      threads.emplace_back([&, i] {
        try {
          work(*endpoints[i]);
        } catch (const std::exception& failure) {
          failures[i] = failure.what();
        }
      });
    }
  }
  for (std::size_t i = 0; i < failures.size(); ++i) EXPECT_EQ(failures[i], "") << "on rank " << i;
}

void await_wait(const Endpoint& end) {
  while (!end.doing().starts_with("waits for ")) std::this_thread::yield();
}

void TransportConformance::SetUp() {
  if (!GetParam().join) {
    directory_.emplace(std::filesystem::temp_directory_path());
    return;
  }
  if (GetParam().process) {
    process_ = GetParam().process();
    return;
  }
  peer_ = Peer::self();
  if (peer_) return;
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  supervisor_ = std::make_unique<Supervisor>(std::vector<std::string>{
      std::filesystem::read_symlink("/proc/self/exe"),
      std::string("--gtest_filter=") + test->test_suite_name() + "." + test->name(),
      "--gtest_brief=1"});
}

void TransportConformance::TearDown() {
  if (process_) process_->together();
  if (!supervisor_) return;
  EXPECT_EQ(supervisor_->finish(kPatience), "");
}

Endpoints TransportConformance::connect(int world, const std::vector<ChannelDepth>& depths) {
  if (GetParam().make) return GetParam().make(world, depths);
  Endpoints endpoints(static_cast<std::size_t>(world));
  const std::uint32_t number = connected_++;
  if (supervisor_) supervisor_->start(world);
  std::vector<std::future<void>> joining;
  for (const Rank rank : own_ranks(world))
    joining.push_back(std::async(std::launch::async, [&, rank] {
      endpoints[rank.index()] = GetParam().join(rank, world, depths, directory(), number);
    }));
  for (auto& rank : joining) rank.get();
  return endpoints;
}

/// Those of a world that this process is.
std::vector<Rank> TransportConformance::own_ranks(int world) const {
  std::vector<Rank> ranks;
  if (peer_) ranks = {peer_->rank()};
  for (int i = 0; process_ && i < GetParam().places; ++i)
    ranks.push_back(Rank{process_->number * GetParam().places + i});
  std::erase_if(ranks, [&](Rank rank) { return rank.value >= world; });
  return ranks;
}

/// No endpoint goes while others still use theirs.
void TransportConformance::come_together(std::size_t world) {
  if (process_) return process_->together();
  if (peer_ && peer_->rank().index() < world) Peer::together();
  if (!supervisor_) return;
  const std::string complaint = supervisor_->together(static_cast<int>(world), kPatience);
  if (!complaint.empty()) throw std::runtime_error(complaint);
}

void TransportConformance::on_every_rank(Endpoints& endpoints,
                                         const std::function<void(Endpoint&)>& work) {
  testing_transport::on_every_rank(endpoints, work);
  come_together(endpoints.size());
}

void TransportConformance::on_rank(Endpoints& endpoints,
                                   Rank rank,
                                   const std::function<void(Endpoint&)>& work) {
  on_every_rank(endpoints, [&](Endpoint& end) {
    if (end.rank() == rank) work(end);
  });
}

const std::string& TransportConformance::directory() const {
  if (directory_) return directory_->path();
  if (process_) return process_->directory;
  return peer_ ? peer_->directory() : supervisor_->directory();
}

Deadline soon() {
  return std::chrono::steady_clock::now() + kSoon;
}

Tensor filled(DType dtype, const Dims& dims, int number) {
  Tensor tensor(dtype, dims);
  auto* bytes = static_cast<unsigned char*>(tensor.data());
  std::uint32_t word = static_cast<std::uint32_t>(number) * 2654435761U + 1U;
  for (std::size_t i = 0; i < tensor.bytes(); ++i) {
    word = word * 1664525U + 1013904223U;
    bytes[i] = static_cast<unsigned char>(word >> 24U);
  }
  return tensor;
}

testing::AssertionResult same(const Tensor& a, const Tensor& b) {
  if (static_cast<bool>(a) != static_cast<bool>(b))
    return testing::AssertionFailure() << "one tensor is empty and the other is not";
  if (!a) return testing::AssertionSuccess();
  if (a.dtype() != b.dtype() || !(a.dims() == b.dims()))
    return testing::AssertionFailure()
           << name_of(a.dtype()) << " " << to_string(a.dims()) << " and " << name_of(b.dtype())
           << " " << to_string(b.dims());
  if (a.bytes() != 0 && std::memcmp(a.data(), b.data(), a.bytes()) != 0)
    return testing::AssertionFailure() << "the bytes differ";
  return testing::AssertionSuccess();
}

MessageTag forward_tag(int micro_batch, int stage, std::uint64_t step) {
  MessageTag tag;
  tag.step = step;
  tag.stage = Stage{stage};
  tag.micro_batch = MicroBatch{micro_batch};
  return tag;
}

}  // namespace millrace::testing_transport
