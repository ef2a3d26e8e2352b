// Ranks with a process' means, each a thread of the test.
#pragma once

#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/transport/in_process.hpp"
#include "millrace/transport/process_group.hpp"

namespace millrace::testing_training {

/// Runs `work` on every one of so many ranks, each a thread with a process' means.
inline void on_ranks(int world, const std::function<void(Endpoint&, ProcessGroup&)>& work) {
  InProcessHub hub(world);
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < world; ++rank)
    ranks.emplace_back([&work, endpoint = hub.endpoint(Rank{rank})] {
      try {
        ProcessGroup group(*endpoint, std::chrono::seconds(30));
        work(*endpoint, group);
        endpoint->goodbye(std::chrono::steady_clock::now() + std::chrono::seconds(30));
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
        endpoint->cancel(error.what());
      }
    });
}

}  // namespace millrace::testing_training
