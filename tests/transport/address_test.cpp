// Places to meet: what is one, what a rank may listen on, and who could be reached there.
#include "transport/zeromq/address.hpp"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <zmq.hpp>

#include "millrace/core/error.hpp"
#include "millrace/transport/private_directory.hpp"
#include "transport/conformance.hpp"

namespace millrace::zeromq {
namespace {

using testing::HasSubstr;

TEST(Address, PlacesAreTakenApart) {
  const MeetingPlace tcp = meeting_place("tcp://node-7:4000");
  EXPECT_FALSE(tcp.ipc);
  EXPECT_EQ(tcp.host, "node-7");
  EXPECT_EQ(tcp.port, 4000);
  EXPECT_EQ(meeting_place("ipc:///run/job/rendezvous").path, "/run/job/rendezvous");
}

TEST(Address, WhatIsNoPlaceIsRefused) {
  for (const char* url : {"",
                          "127.0.0.1:4567",
                          "http://node:80",
                          "tcp://node",
                          "tcp://:4000",
                          "tcp://node:",
                          "tcp://node:0",
                          "tcp://node:99999",
                          "tcp://node:80x",
                          "ipc://"})
    EXPECT_THROW((void)meeting_place(url), InvalidArgument) << url;
}

TEST(Address, Names_AreResolvedBeforeListening) {
  EXPECT_EQ(address_to_bind(meeting_place("tcp://localhost:4567")), "tcp://127.0.0.1:4567");
  EXPECT_EQ(address_to_bind(meeting_place("tcp://127.0.0.3:4567")), "tcp://127.0.0.3:4567");
  for (const char* url : {"tcp://*:4567", "tcp://0.0.0.0:4567", "tcp://0:4567"})
    EXPECT_THROW((void)address_to_bind(meeting_place(url)), InvalidArgument) << url;
}

TEST(Address, ARankThatOthersCouldNotReachIsRefused) {
  ZeroMqOptions options;
  options.world = 2;
  options.link = ZeroMqLink::Tcp;
  const MeetingPlace elsewhere = meeting_place("tcp://192.0.2.7:4000");
  try {
    check_reachable(elsewhere, options);
    FAIL() << "others would look for 127.0.0.1 on their own machine";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("name its address (interface)"));
  }
  check_reachable(meeting_place("tcp://localhost:4000"), options);
  options.interface = "192.0.2.8";
  check_reachable(elsewhere, options);
}

std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    names.push_back(entry.path().filename());
  return names;
}

TEST(ZeroMqFiles, FilesOfSocketsGoWithTheirEndpoints) {
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  ZeroMqOptions options;
  options.world = 2;
  options.directory = directory.path();
  auto ends = zeromq_mesh(options);
  EXPECT_GE(names_in(directory.path()).size(), 4U);
  testing_transport::on_every_rank(ends,
                                   [](Endpoint& end) { end.leave(testing_transport::soon()); });
  ends.clear();
  EXPECT_THAT(names_in(directory.path()), testing::IsEmpty());
}

TEST(ZeroMqFiles, DeadSocket_IsReplaced) {
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  ZeroMqOptions options;
  options.directory = directory.path();
  const auto context = std::make_shared<ZeroMqContext>();
  const std::string path = directory.path() + "/r0.0.data";
  {
    zmq::context_t network;
    zmq::socket_t dead(network, zmq::socket_type::router);
    dead.bind("ipc://" + path);  // its file stays
  }
  ASSERT_TRUE(std::filesystem::exists(path));
  {
    const ZeroMqListener listener(options, context);
    EXPECT_THROW((void)ZeroMqListener(options, context), TransportError);  // the first one lives
  }
  std::ofstream(path) << "not a socket";
  EXPECT_THROW((void)ZeroMqListener(options, context), TransportError);
}

}  // namespace
}  // namespace millrace::zeromq
