// A rank that stops inside a pass of its own choosing: the one place where a test knows which
// stage, unit and action everybody must name.
#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>

#include "millrace/core/random.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/run/executor.hpp"
#include "millrace/training/ranks.hpp"
#include "millrace/transport/listener.hpp"
#include "millrace/transport/private_directory.hpp"
#include "millrace/transport/zeromq.hpp"

namespace millrace {
namespace {

using testing::HasSubstr;

constexpr int kRanks = 3;
constexpr int kMicroBatches = 4;
constexpr std::uint64_t kSteps = 5;

/// A pass of the job.
struct Place {
  int rank = 0;
  bool forward = true;
  int micro_batch = 0;
  std::uint64_t step = 0;

  [[nodiscard]] std::string name() const {
    const std::string at = std::to_string(rank);
    return "everyone waits for rank " + at + ": " + (forward ? "F" : "B") + " of stage " + at +
           ", micro-batch " + std::to_string(micro_batch) + " of step " + std::to_string(step) +
           ", since";
  }
};

/// Passes eight numbers on, and stops its process in one pass.
class Stopper final : public StageBody {
 public:
  Stopper(int rank, const Place& place) : rank_(rank), place_(place) {}

  TensorList forward(const PassContext& context, TensorList /*inputs*/) override {
    TensorList outputs = pass(context, true);
    return context.loss == nullptr ? std::move(outputs)
                                   : TensorList();  // the last stage gives none
  }
  TensorList backward_input(const PassContext& context, TensorList /*gradients*/) override {
    return pass(context, false);
  }
  void backward_weight(const PassContext& /*context*/) override {}

 private:
  TensorList pass(const PassContext& context, bool forward) const {
    if (rank_ == place_.rank && forward == place_.forward && context.step == place_.step &&
        context.micro_batch.value == place_.micro_batch)
      ::raise(SIGSTOP);
    return TensorList(context.make(DType::F32, {8}));
  }

  int rank_;
  Place place_;
};

class Zeros final : public StepData {
 public:
  TensorList inputs(const Unit& /*unit*/) override { return TensorList(Tensor(DType::F32, {8})); }
  TensorList targets(const Unit& /*unit*/) override { return {}; }
  [[nodiscard]] std::int64_t first_sample(const Unit& /*unit*/) const override { return 0; }
};

/// A rank's process: trains until something goes wrong, and writes what.
[[noreturn]] void be_rank(int rank, const std::string& directory, const Place& place, int out) {
  std::string report = "nothing went wrong";
  try {
    const Program program = generate("1f1b", {.ranks = kRanks, .micro_batches = kMicroBatches});
    ZeroMqOptions options;
    options.rank = Rank{rank};
    options.world = kRanks;
    options.directory = directory;
    options.depths = channel_depths(program);
    options.heartbeat_timeout = std::chrono::milliseconds(1000);
    const auto endpoint = meet({.url = "ipc://" + directory + "/rendezvous"},
                               ZeroMqListener(options, std::make_shared<ZeroMqContext>()));
    Stopper body(rank, place);
    const HostedStage mine{Replica{}, Stage{rank}, &body};
    const auto executor = make_rank_executor(program, std::span(&mine, 1), *endpoint);
    Zeros data;
    for (std::uint64_t step = 0; step < kSteps; ++step)
      (void)executor->run(data, {.step = step, .deadline = std::chrono::seconds(60)});
    // A rank that has no more to wait for still hears of it.
    MessageTag never;
    never.step = kSteps;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    (void)endpoint->receive(Rank{place.rank}, never, deadline);
  } catch (const std::exception& error) {
    report = error.what();
  }
  static_cast<void>(!::write(out, report.data(), report.size()));
  ::_exit(0);
}

std::string read_to_end(int file) {
  std::string text;
  std::array<char, 1024> bytes{};
  for (ssize_t count = 0; (count = ::read(file, bytes.data(), bytes.size())) > 0;)
    text.append(bytes.data(), static_cast<std::size_t>(count));
  ::close(file);
  return text;
}

/// What the survivors reported.
std::vector<std::string> reports_of(const Place& place) {
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  std::array<pid_t, kRanks> processes{};
  std::array<int, kRanks> outputs{};
  for (int i = 0; i < kRanks; ++i) {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) throw Error("no pipe");
    processes[static_cast<std::size_t>(i)] = ::fork();
    // Not even by accident may the -1 of a failed fork reach kill().
    if (processes[static_cast<std::size_t>(i)] < 0) throw Error("no process");
    if (processes[static_cast<std::size_t>(i)] == 0) be_rank(i, directory.path(), place, ends[1]);
    ::close(ends[1]);
    outputs[static_cast<std::size_t>(i)] = ends[0];
  }
  std::vector<std::string> reports;
  for (int i = 0; i < kRanks; ++i)
    if (i != place.rank) reports.push_back(read_to_end(outputs[static_cast<std::size_t>(i)]));
  ::close(outputs[static_cast<std::size_t>(place.rank)]);
  ::kill(processes[static_cast<std::size_t>(place.rank)], SIGKILL);
  for (const pid_t process : processes) ::waitpid(process, nullptr, 0);
  return reports;
}

TEST(Campaign, StoppedRank_IsNamedWithItsPass) {
  const char* said = std::getenv("MILLRACE_ROUNDS");  // NOLINT(concurrency-mt-unsafe)
  const std::uint32_t rounds = said == nullptr ? 2 : static_cast<std::uint32_t>(std::stoul(said));
  for (std::uint32_t i = 0; i < rounds; ++i) {
    // From the second step on: in the first, rank 0 may stop before its welcome has left the
    // process, and the others then rightly say that rank 0 does not answer.
    const auto word = random_block({.seed = 19, .purpose = Purpose::Test}, i);
    const Place place{static_cast<int>(word[0] % kRanks),
                      word[1] % 2 == 0,
                      static_cast<int>(word[2] % kMicroBatches),
                      1 + word[3] % (kSteps - 1)};
    for (const std::string& report : reports_of(place)) {
      ASSERT_THAT(report, HasSubstr(place.name())) << "round " << i;
    }
  }
}

}  // namespace
}  // namespace millrace
