// In-process mailboxes: the conformance suite, and what only they promise.
#include "millrace/transport/in_process.hpp"

#include <thread>

#include <gmock/gmock.h>

#include "millrace/transport/endpoint.hpp"
#include "transport/conformance.hpp"
#include "transport/meeting_conformance.hpp"

namespace millrace {

namespace {

using testing_transport::Endpoints;
using testing_transport::filled;
using testing_transport::forward_tag;
using testing_transport::Gathering;
using testing_transport::ListenersUnderTest;
using testing_transport::MeetingConformance;
using testing_transport::soon;
using testing_transport::TransportConformance;
using testing_transport::TransportUnderTest;

Endpoints connect(int world, const std::vector<ChannelDepth>& depths) {
  InProcessHub hub(world, depths);
  Endpoints endpoints;
  for (int i = 0; i < world; ++i) endpoints.push_back(hub.endpoint(Rank{i}));
  return endpoints;
}

Gathering listen(int world, const std::string& directory) {
  InProcessHub hub(world);
  Gathering all{{}, directory};
  for (int i = 0; i < world; ++i) all.listeners.push_back(hub.listener(Rank{i}));
  return all;
}

INSTANTIATE_TEST_SUITE_P(InProcess,
                         TransportConformance,
                         testing::Values(TransportUnderTest{"in_process", connect}));
INSTANTIATE_TEST_SUITE_P(InProcess,
                         MeetingConformance,
                         testing::Values(ListenersUnderTest{"in_process", listen}));

std::string failure_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const TransportError& error) {
    return error.what();
  }
  return "no TransportError";
}

TEST(InProcess, HandsTensorsOverWithoutCopyingThem) {
  Endpoints ends = connect(2, {});
  Tensor tensor = filled(DType::F32, {8}, 1);
  const void* memory = tensor.data();

  ends[0]->send(Rank{1}, forward_tag(0), TensorList(std::move(tensor)));

  EXPECT_EQ(ends[1]->receive(Rank{0}, forward_tag(0), soon())[0].data(), memory);
}

TEST(InProcess, AWaitForALostRankEndsAtOnce) {
  Endpoints ends = connect(2, {});
  std::string message;

  std::jthread waiting([&] {
    message = failure_of([&] { (void)ends[1]->receive(Rank{0}, forward_tag(3), soon()); });
  });
  ends[0].reset();
  waiting.join();

  EXPECT_THAT(message, testing::HasSubstr("rank 0 was lost before the activation for stage 1"));
  EXPECT_THAT(failure_of([&] { ends[1]->send(Rank{0}, forward_tag(0), TensorList()); }),
              testing::HasSubstr("rank 0 was lost"));
  // As a type, too: who saves after a failure does not wait for a rank that is lost.
  EXPECT_THROW(ends[1]->send(Rank{0}, forward_tag(0), TensorList()), PeerLost);
}

TEST(InProcess, WaitAfterShutdown_EndsAtOnce) {
  Endpoints ends = connect(2, {});
  ends[0]->leave(soon());

  EXPECT_THAT(failure_of([&] { (void)ends[1]->receive(Rank{0}, forward_tag(3), soon()); }),
              testing::HasSubstr("rank 0 left"));
  EXPECT_THROW((void)ends[1]->receive(Rank{0}, forward_tag(3), soon()), PeerLost);
  EXPECT_THAT(failure_of([&] { ends[0]->send(Rank{1}, forward_tag(0), TensorList()); }),
              testing::HasSubstr("has left; its endpoint is closed"));
}

TEST(InProcess, ArrivedMessage_IsTakenAfterDeadline) {
  Endpoints ends = connect(2, {});
  ends[0]->send(Rank{1}, forward_tag(0), TensorList());

  EXPECT_EQ(ends[1]->receive(Rank{0}, forward_tag(0), Deadline{}).size(), 0U);
  EXPECT_THROW((void)ends[1]->receive(Rank{0}, forward_tag(0), Deadline{}), TransportError);
}

TEST(InProcess, RefusesWhatHasNoMeaning) {
  EXPECT_THROW(InProcessHub(0), InvalidArgument);
  const std::vector<ChannelDepth> flat = {{Rank{0}, Rank{1}, Direction::Forward, 0}};
  EXPECT_THROW(InProcessHub(2, flat), InvalidArgument);
  const std::vector<ChannelDepth> outside = {{Rank{0}, Rank{2}, Direction::Forward, 1}};
  EXPECT_THROW(InProcessHub(2, outside), InvalidArgument);
  InProcessHub hub(2);
  const auto taken = hub.endpoint(Rank{1});
  EXPECT_THROW((void)hub.endpoint(Rank{1}), InvalidArgument);
  EXPECT_THROW((void)hub.endpoint(Rank{2}), InvalidArgument);
  EXPECT_THROW(taken->send(Rank{2}, forward_tag(0), TensorList()), InvalidArgument);
}

}  // namespace

}  // namespace millrace
