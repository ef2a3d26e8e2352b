// What a worker does between meeting the other ranks and saying goodbye: train, or measure the
// connections. Typed after "--".
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "millrace/transport/endpoint.hpp"
#include "millrace/transport/process_group.hpp"
#include "millrace/transport/rendezvous.hpp"

namespace millrace::cli {

/// Thread-safety: externally synchronised.
struct RankWork {
  HelloFields fields;                ///< compared on all ranks before anything begins
  std::vector<ChannelDepth> depths;  ///< what its channels hold
  std::function<void(Endpoint&, ProcessGroup&)> run;
};

/// The work that `words` name, for one rank: "train" or "doctor", each with its options. `patience`
/// as SaveOptions::patience. Throws InvalidArgument, and what the parser throws.
[[nodiscard]] RankWork rank_work(std::vector<std::string> words,
                                 Rank rank,
                                 int world,
                                 std::chrono::milliseconds patience);

/// Refuses what no rank could do, before any is started; looks at no data.
void check_work(std::vector<std::string> words, int world);
void check_train(const std::vector<std::string>& options, int world);

/// A rank's share of a training.
[[nodiscard]] RankWork train_work(const std::vector<std::string>& options,
                                  Rank rank,
                                  int world,
                                  std::chrono::milliseconds patience);

/// A rank's share of measuring all connections between neighbours.
[[nodiscard]] RankWork doctor_work(const std::vector<std::string>& options, int world);

}  // namespace millrace::cli
