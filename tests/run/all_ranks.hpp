// All ranks of a program as separate rank executors against endpoints, each on a thread of its own:
// what p worker processes do, in one process.
#pragma once

#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/scheduler/run/executor.hpp"
#include "millrace/transport/in_process.hpp"

namespace millrace::testing_run {

/// Expects that of a failed step exactly one rank throws a StepError and the others, if anything,
/// Cancelled with its message.
class AllRanks final : public Executor {
 public:
  AllRanks(const Program& program, std::span<const HostedStage> stages)
      : given_(program), stages_(stages.begin(), stages.end()) {
    connect();
  }

  StepResult run(StepData& data, const StepSettings& settings) override {
    std::vector<StepResult> parts(ranks_.size());
    std::vector<std::exception_ptr> failures(ranks_.size());
    {
      std::vector<std::jthread> threads;
      for (std::size_t i = 0; i < ranks_.size(); ++i)
        threads.emplace_back([&, i] {
          try {
            parts[i] = ranks_[i]->run(data, settings);
          } catch (...) {
            failures[i] = std::current_exception();
          }
        });
    }
    rethrow_the_one(failures);
    return merge(std::move(parts));
  }

  [[nodiscard]] const Timeline& timeline() const override {
    timeline_.ranks.clear();
    for (std::size_t i = 0; i < ranks_.size(); ++i)
      timeline_.ranks.push_back(ranks_[i]->timeline().ranks[i]);
    return timeline_;
  }

  [[nodiscard]] std::chrono::steady_clock::time_point started() const override {
    return ranks_.front()->started();
  }

  [[nodiscard]] const Program& program() const override { return ranks_.front()->program(); }

  void for_each_rank(const std::function<void(Rank)>& body) override {
    for (const auto& rank : ranks_) rank->for_each_rank(body);
  }

 private:
  void connect() {
    ranks_.clear();
    endpoints_.clear();
    InProcessHub hub(given_.shape.ranks);
    for (int i = 0; i < given_.shape.ranks; ++i) {
      endpoints_.push_back(hub.endpoint(Rank{i}));
      ranks_.push_back(make_rank_executor(given_, stages_, *endpoints_.back()));
    }
  }

  void rethrow_the_one(const std::vector<std::exception_ptr>& failures) {
    std::exception_ptr one;
    std::vector<std::string> consequences;
    for (const std::exception_ptr& failure : failures) {
      if (failure == nullptr) continue;
      try {
        std::rethrow_exception(failure);
      } catch (const Cancelled& cancelled) {
        consequences.emplace_back(cancelled.what());
      } catch (const InvalidArgument&) {
        one = failure;  // wrong settings: every rank says so
      } catch (...) {
        EXPECT_EQ(one, nullptr) << "two ranks failed by themselves";
        one = failure;
      }
    }
    if (one == nullptr) return;
    connect();
    try {
      std::rethrow_exception(one);
    } catch (const std::exception& cause) {
      for (const std::string& consequence : consequences) EXPECT_EQ(consequence, cause.what());
      throw;
    }
  }

  static StepResult merge(std::vector<StepResult> parts) {
    StepResult whole;
    whole.unit_losses.resize(parts.front().unit_losses.size());
    whole.outputs.resize(parts.front().outputs.size());
    whole.other_losses.resize(parts.front().other_losses.size(), whole.unit_losses);
    for (StepResult& part : parts) {
      for (std::size_t sink = 0; sink < whole.other_losses.size(); ++sink)
        for (std::size_t unit = 0; unit < whole.unit_losses.size(); ++unit)
          whole.other_losses[sink][unit] += part.other_losses[sink][unit];
      for (std::size_t unit = 0; unit < whole.unit_losses.size(); ++unit)
        whole.unit_losses[unit] += part.unit_losses[unit];
      for (std::size_t unit = 0; unit < whole.outputs.size(); ++unit)
        if (!part.outputs[unit].empty()) whole.outputs[unit] = std::move(part.outputs[unit]);
      whole.samples += part.samples;
      whole.peak_stash_bytes.push_back(part.peak_stash_bytes[whole.peak_stash_bytes.size()]);
      if (!part.peak_sum_bytes.empty())
        whole.peak_sum_bytes.push_back(part.peak_sum_bytes[whole.peak_sum_bytes.size()]);
    }
    for (const LossSum& loss : whole.unit_losses) whole.loss += loss;
    return whole;
  }

  const Program given_;
  const std::vector<HostedStage> stages_;
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
  std::vector<std::unique_ptr<Executor>> ranks_;
  mutable Timeline timeline_;
};

}  // namespace millrace::testing_run
