// What a rank tells its transport while it trains: every action of a pass by name, evaluations
// under step numbers of their own, and nothing while hooks run, so that no limit of an op judges
// them.
#include <cstdint>
#include <memory>
#include <numeric>
#include <set>
#include <string>

#include <gmock/gmock.h>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/training/ranks.hpp"
#include "millrace/transport/in_process.hpp"
#include "millrace/transport/process_group.hpp"
#include "support/test_options.hpp"

namespace millrace {
namespace {

using testing::ElementsAre;

constexpr std::uint64_t kFirstEvaluation = std::uint64_t{1} << 63U;

/// An endpoint that keeps what it is told of the rank's work.
class Told final : public Endpoint {
 public:
  explicit Told(Endpoint& endpoint) : endpoint_(endpoint) {}

  [[nodiscard]] Rank rank() const override { return endpoint_.rank(); }
  [[nodiscard]] int world() const override { return endpoint_.world(); }
  void send(Rank to, const MessageTag& tag, TensorList payload) override {
    endpoint_.send(to, tag, std::move(payload));
  }
  [[nodiscard]] TensorList receive(Rank from, const MessageTag& tag, Deadline deadline) override {
    return endpoint_.receive(from, tag, deadline);
  }
  void working(const Work& work) noexcept override {
    now = work.what;
    if (!now.empty()) (work.step < kFirstEvaluation ? trained : evaluated).insert(now);
  }
  void cancel(const std::string& reason) noexcept override { endpoint_.cancel(reason); }
  void leave(Deadline deadline) override { endpoint_.leave(deadline); }

  std::string now;  ///< empty: no action
  std::set<std::string> trained, evaluated;

 private:
  Endpoint& endpoint_;
};

TEST(ToldWork, Hooks_AreNoAction) {
  const ModelSpec model = parse_model("mlp:64-8-10");
  TestOptions options;
  options.pipeline.shape.ranks = 1;
  options.pipeline.shape.micro_batches = 2;
  options.fit.batch_size = 30;
  options.fit.epochs = 2;
  std::vector<std::int32_t> rows(60);
  std::iota(rows.begin(), rows.end(), 0);
  const Dataset data = select_rows(digits(), rows);
  const Program program = generate("1f1b", {.ranks = 1, .micro_batches = 2});
  InProcessHub hub(1);
  const auto door = hub.endpoint(Rank{0});
  Told endpoint(*door);
  ProcessGroup group(endpoint, std::chrono::seconds(30));
  Trainer trainer(rank_parts(model, {program}, options, endpoint, group));

  int hooks = 0;
  const auto expect_idle = [&] {
    ++hooks;
    EXPECT_EQ(endpoint.now, "");
  };
  trainer.before_update = [&](auto&&...) { expect_idle(); };
  trainer.on_step = [&](const StepReport&) { expect_idle(); };
  trainer.on_epoch = [&](const EpochReport&) {
    expect_idle();
    EXPECT_EQ(trainer.evaluate(data, 30).samples, 60);  // a pass inside a hook
    expect_idle();
  };
  trainer.fit(data);

  EXPECT_EQ(hooks, 4 + 4 + 2 * 2);
  EXPECT_THAT(endpoint.trained, ElementsAre("B", "F", "STEP"));
  EXPECT_THAT(endpoint.evaluated, ElementsAre("F"));
}

}  // namespace
}  // namespace millrace
