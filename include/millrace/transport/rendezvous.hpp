// How processes that know one place become connected endpoints: everybody says hello to rank 0,
// which compares what each was built for and answers with all addresses, or with the difference.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "millrace/transport/hello.hpp"
#include "millrace/transport/listener.hpp"

namespace millrace {

struct RendezvousOptions {
  /// Where rank 0 listens, in the words of the backend: "ipc://" in a private directory, or
  /// "tcp://address:port".
  std::string url = {};
  /// Protocol version and world size are compared first, without being named here.
  HelloFields fields = {};
  /// How long rank 0 waits for the next rank to come, and every other one for news of that; so a
  /// meeting of many ranks on few cores lasts as long as it makes progress.
  std::chrono::milliseconds join_timeout{60'000};
  /// How long a rank 0 that has answered may then say nothing, though not less than 1 s.
  std::chrono::milliseconds heartbeat_timeout{10'000};
  /// On rank 0, about once a second while it waits: how many ranks, itself included, are there.
  std::function<void(int came)> progress = {};
  /// A file that whoever started the ranks writes when one of them ends too soon, with the sentence
  /// that says so; its appearance ends the wait. Empty: nobody will.
  std::string obituary = {};
};

/// Blocks until all ranks have said the same, and opens `listener`, which says who this is. Throws
/// Mismatch on every rank, naming field, rank and both values, when a rank differs; PeerLost with
/// the obituary; PeerHangs when not all ranks come in time, naming the missing ones on all that
/// came, and when rank 0 falls silent; and what Listener::rendezvous_channel and Listener::open
/// throw. A world of one rank meets nobody and looks at no url.
[[nodiscard]] std::unique_ptr<Endpoint> meet(const RendezvousOptions& rendezvous,
                                             Listener&& listener);

}  // namespace millrace
