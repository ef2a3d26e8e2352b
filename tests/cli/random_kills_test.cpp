// Jobs that launch --restarts starts again, with a process killed at random moments: they end with
// the weights of the run that nothing disturbed. Of five kills one comes while ranks start and one
// while a checkpoint is being saved. MILLRACE_ROUNDS (tests/soak.sh sets it) has the kills of each
// job.
#include <array>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <optional>
#include <set>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "cli/launched.hpp"
#include "millrace/core/random.hpp"
#include "millrace/transport/launch.hpp"
#include "tests/training/sample_files.hpp"

namespace millrace {
namespace {

using test::Command;
using test::count;
using test::Outcome;
using test::run;
using test::Saved;
using test::weights_text;
using testing::HasSubstr;
using testing_files::Folder;

namespace fs = std::filesystem;

/// A job that is disturbed; `seed` draws moments and victims.
struct Job {
  const char* flags;
  std::size_t processes;
  const char* work;
  std::uint64_t seed;
};

enum class Moment : std::uint8_t { Start, Save, Step };

std::uint32_t kills_of_a_job() {
  const char* said = std::getenv("MILLRACE_ROUNDS");  // NOLINT(concurrency-mt-unsafe)
  return said == nullptr ? 3 : static_cast<std::uint32_t>(std::stoul(said));
}

std::uint32_t draw(std::uint64_t seed, std::uint32_t number, std::uint32_t below) {
  return random_below({.seed = seed, .purpose = Purpose::Test}, number, below);
}

/// Of every five kills, over all jobs, one start and one save, at random places. No two starts
/// follow each other: the second would come without progress.
std::vector<Moment> moments_of(std::uint32_t kills) {
  std::vector<Moment> moments;
  while (moments.size() < kills) {
    const auto block = static_cast<std::uint32_t>(moments.size());
    const bool follows = !moments.empty() && moments.back() == Moment::Start;
    const std::uint32_t start = follows ? 1 + draw(9, block, 4) : draw(9, block, 5);
    const std::uint32_t save = (start + 1 + draw(9, block + 1, 4)) % 5;
    for (std::uint32_t i = 0; i < 5; ++i)
      moments.push_back(i == start ? Moment::Start : i == save ? Moment::Save : Moment::Step);
  }
  moments.resize(kills);
  return moments;
}

/// Kills one process of the job after the other, each in an attempt of its own. All processes stand
/// still while it looks whether the moment is the right one.
class Killer {
 public:
  Killer(const Command& command, const Job& job, std::string folder)
      : command_(command), job_(job), folder_(std::move(folder)) {}

  /// False if the job had ended before, or its ranks had started before they stood still.
  bool kill(Moment moment, std::uint32_t number) {
    if (!find_next_workers()) return false;
    const bool is_met = moment == Moment::Start ? starts(number) : meets(moment, number);
    if (is_met)
      ::kill(workers_[draw(job_.seed + 100, number, static_cast<std::uint32_t>(job_.processes))],
             SIGKILL);
    signal_all(SIGCONT);
    return is_met;
  }

  [[nodiscard]] std::vector<pid_t> all() const { return {seen_.begin(), seen_.end()}; }

 private:
  bool find_next_workers() {
    while (!command_.has_ended()) {
      workers_ = command_.workers(job_.processes);
      const bool is_new =
          workers_.size() == job_.processes &&
          std::ranges::none_of(workers_, [&](pid_t id) { return seen_.contains(id); });
      if (!is_new) continue;
      seen_.insert(workers_.begin(), workers_.end());
      begun_ = Saved(folder_).newest;
      return true;
    }
    return false;
  }

  void signal_all(int signal) const {
    for (const pid_t worker : workers_) ::kill(worker, signal);
  }

  [[nodiscard]] static bool stands_still(pid_t worker) {
    std::error_code error;
    for (const auto& task :
         fs::directory_iterator("/proc/" + std::to_string(worker) + "/task", error)) {
      const std::string facts = test::text_of(task.path() / "stat");
      const auto after_name = facts.rfind(')');
      if (after_name != std::string::npos && facts[after_name + 2] != 'T' &&
          facts[after_name + 2] != 'Z')
        return false;
    }
    return true;
  }

  void stop_all() const {
    signal_all(SIGSTOP);
    while (!command_.has_ended() && !std::ranges::all_of(workers_, stands_still))
      std::this_thread::yield();
  }

  /// Whether all ranks still are before their first step.
  bool starts(std::uint32_t number) const {
    constexpr std::uint32_t kMicroseconds = 10'000;
    std::this_thread::sleep_for(
        std::chrono::microseconds(draw(job_.seed + 200, number, kMicroseconds)));
    stop_all();
    std::string folder = fs::directory_iterator(command_.temporary_folder())->path();
    if (const auto attempt = seen_.size() / job_.processes - 1; attempt > 0)
      folder += "/" + std::to_string(attempt);
    LaunchConfig place;
    place.directory = folder;
    for (std::size_t rank = 0; rank < job_.processes; ++rank)
      if (place.step_of(Rank{static_cast<int>(rank)}).value_or(-1) >= begun_) return false;
    return !command_.has_ended();
  }

  /// After at least one more checkpoint than the attempt began with. False: the job ended.
  bool meets(Moment moment, std::uint32_t number) const {
    constexpr std::uint32_t kMicroseconds = 20'000;
    while (Saved(folder_).newest <= begun_ && !command_.has_ended()) std::this_thread::yield();
    for (std::uint32_t i = 0; !command_.has_ended(); ++i) {
      if (moment == Moment::Step)
        std::this_thread::sleep_for(
            std::chrono::microseconds(draw(job_.seed + 200 + i, number, kMicroseconds)));
      else
        while (!Saved(folder_).writes && !command_.has_ended()) std::this_thread::yield();
      stop_all();
      if (Saved(folder_).writes == (moment == Moment::Save)) return !command_.has_ended();
      signal_all(SIGCONT);
    }
    return false;
  }

  const Command& command_;
  const Job& job_;
  std::string folder_;
  std::vector<pid_t> workers_;
  std::set<pid_t> seen_;
  long begun_ = 0;
};

/// Names in /dev/shm.
std::set<std::string> shared_files() {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/dev/shm", error))
    if (entry.path().filename().string().find("millrace") != std::string::npos)
      names.insert(entry.path().filename());
  return names;
}

void expect_records(const std::string& log, std::uint32_t restarts) {
  std::istringstream lines(test::text_of(log));
  std::uint32_t step = 0, found = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto record = nlohmann::json::parse(line);
    EXPECT_EQ(record["step"], ++step);
    EXPECT_EQ(record["downtime"].get<double>() > 0, record["restarts"].get<int>() > 0) << line;
    found += record["restarts"].get<std::uint32_t>();
  }
  EXPECT_EQ(found, restarts);
}

void kill_at(const std::vector<Moment>& moments, const Job& job) {
  const auto kills = static_cast<std::uint32_t>(moments.size());
  const Folder folder("restarted");
  const std::string saved = folder.path() + "/saved", log = folder.path() + "/log.jsonl";
  const std::string work = std::string("train --json --model mlp:64-24-24-10,dropout=0.1 -m 4 ") +
                           job.work + " --batch-size 64 --seed 3 --steps " +
                           std::to_string(100 + 60 * kills);  // on a busy machine, too
  const std::string flags = "launch -n " + std::to_string(job.processes) + " " + job.flags;
  SCOPED_TRACE(flags + " -- " + work);
  const auto before = shared_files();
  const Outcome whole = run(work);
  ASSERT_EQ(whole.code, 0) << whole.errors;

  Command command(flags + " --restarts 2 -- " + work + " --save " + saved +
                  " --save-every 4 --log " + log);
  Killer killer(command, job, saved);
  std::uint32_t killed = 0;
  while (killed < kills && killer.kill(moments[killed], killed)) ++killed;
  command.await_end();
  const Outcome outcome = command.end();

  EXPECT_EQ(outcome.code, 0) << outcome.errors;
  EXPECT_EQ(weights_text(outcome), weights_text(whole)) << outcome.errors;
  EXPECT_EQ(killed, kills) << "the job was too short";
  EXPECT_EQ(count(outcome.errors, "; restart "), killed) << outcome.errors;
  EXPECT_EQ(count(outcome.errors, " before its first step; restart "),
            std::ranges::count(moments, Moment::Start))
      << outcome.errors;
  const auto last = outcome.errors.rfind(" from step ");
  ASSERT_NE(last, std::string::npos) << outcome.errors;
  std::string step_text = std::to_string(std::stol(outcome.errors.substr(last + 11)));
  step_text.insert(0, 10 - step_text.size(), '0');
  EXPECT_THAT(outcome.errors, HasSubstr("millrace: resumed " + saved + "/step-" + step_text));
  for (const auto& entry : fs::directory_iterator(saved))
    EXPECT_THAT(entry.path().filename().string(), testing::StartsWith("step-"));
  EXPECT_TRUE(test::all_gone(killer.all()));
  EXPECT_EQ(shared_files(), before);
  expect_records(log, killed);
}

TEST(RestartedJob, RandomKills_LeaveTheWeightsOverEveryTransport) {
  const std::array jobs = {Job{"--endpoint shm", 2, "-p 2", 1},
                           Job{"--endpoint ipc", 2, "-p 2 --schedule zb-h1", 2},
                           Job{"--endpoint tcp", 2, "-p 2", 3},
                           Job{"--endpoint shm", 4, "-p 2 -d 2 --shard-optimizer", 4}};
  const std::uint32_t kills = kills_of_a_job();
  const std::vector<Moment> all = moments_of(kills * static_cast<std::uint32_t>(jobs.size()));
  for (std::size_t i = 0; i < jobs.size(); ++i)
    kill_at({all.begin() + static_cast<std::ptrdiff_t>(i * kills),
             all.begin() + static_cast<std::ptrdiff_t>((i + 1) * kills)},
            jobs[i]);
  std::cout << all.size() << " kills, " << std::ranges::count(all, Moment::Start)
            << " while ranks start, " << std::ranges::count(all, Moment::Save) << " while saving\n";
}

}  // namespace
}  // namespace millrace
