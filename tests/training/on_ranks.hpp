// Ranks with a process' means, each a thread of the test.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/transport/in_process.hpp"
#include "millrace/transport/process_group.hpp"

namespace millrace::testing_training {

/// For messages of a machine that does other things, too.
inline constexpr std::chrono::seconds kPatience{120};

using RankWork = std::function<void(Endpoint&, ProcessGroup&)>;

/// Runs `work` at every endpoint, each on a thread with a process' means.
inline void on_ranks(std::vector<std::unique_ptr<Endpoint>> endpoints, const RankWork& work) {
  std::vector<std::jthread> ranks;
  for (std::unique_ptr<Endpoint>& each : endpoints)
    ranks.emplace_back([&work, endpoint = std::move(each)] {
      try {
        ProcessGroup group(*endpoint, kPatience);
        work(*endpoint, group);
        endpoint->leave(std::chrono::steady_clock::now() + kPatience);
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
        endpoint->cancel(error.what());
      }
    });
}

/// The same on so many ranks of one hub.
inline void on_ranks(int world, const RankWork& work) {
  InProcessHub hub(world);
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  for (int rank = 0; rank < world; ++rank) endpoints.push_back(hub.endpoint(Rank{rank}));
  on_ranks(std::move(endpoints), work);
}

}  // namespace millrace::testing_training
