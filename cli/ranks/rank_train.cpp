// What a worker does when it trains: one rank's stages, the data where they need it, and on rank 0
// the words and files of the whole.
#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <iostream>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <unistd.h>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/numbers.hpp"
#include "cli/ranks/rank_work.hpp"
#include "cli/subcommands.hpp"
#include "cli/train/options.hpp"
#include "cli/train/run.hpp"
#include "cli/train/stop_signals.hpp"
#include "cli/usage.hpp"
#include "cli/vocabulary.hpp"
#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/text.hpp"
#include "millrace/training/checkpoint.hpp"
#include "millrace/training/ranks.hpp"
#include "millrace/training/state.hpp"

namespace millrace::cli {

namespace {

/// Everything that decides bits, or whether two ranks understand each other.
HelloFields hello_of(const TrainJob& job) {
  HelloFields fields = build_fields();
  const HelloFields own = {{"work", "train"},
                           {"schedule", job.program.name},
                           {"plan", plan_hash(job.program)},
                           {"model", job.model.text},
                           {"cut", fmt::format("{}", fmt::join(job.boundaries, ","))},
                           {"data", job.flags.data},
                           {"lengths", job.flags.lengths},
                           {"validation", job.flags.validation},
                           {"data-parallel replicas", std::to_string(job.flags.data_parallel)},
                           {"precision", name_of(job.model.precision)},
                           {"checkpoint step", std::to_string(job.flags.start.from_step)}};
  const HelloFields table = agreed_settings(with_loss_scale(job.options, job.model.precision));
  fields.insert(fields.end(), own.begin(), own.end());
  fields.insert(fields.end(), table.begin(), table.end());
  return fields;
}

std::string processes(int count) {
  return std::to_string(count) + (count == 1 ? " process" : " processes");
}

/// A line on standard error, which is a process's log. The first one leaves it out: its own is what
/// a person sees, who has the progress and the results.
void note(const JobProcess& process, Rank rank, const std::string& text) {
  if (process.number != 0) std::cerr << "rank " + std::to_string(rank.value) + text + "\n";
}

void note_begin(const TrainJob& job, const JobProcess& process, Rank rank) {
  const Shape& shape = job.program.shape;
  const Grid grid = job.grid();
  std::set<int> mine;
  for (int i = 0; i < shape.replicas(); ++i)
    for (int stage = 0; stage < shape.stages(); ++stage)
      if (shape.rank(Replica{i}, Stage{stage}) == grid.place_of(rank)) mine.insert(stage);
  note(process,
       rank,
       fmt::format(" of {}: {}{} {}, process {}",
                   grid.processes(),
                   grid.data() == 1 ? "" : fmt::format("copy {}, ", grid.copy_of(rank)),
                   mine.size() == 1 ? "stage" : "stages",
                   fmt::join(mine, ","),
                   ::getpid()));
}

void note_end(const TrainOutcome& outcome, const JobProcess& process, Rank rank) {
  note(process,
       rank,
       fmt::format(": done after {} {} in {:.1f} s",
                   outcome.updates,
                   outcome.updates == 1 ? "update" : "updates",
                   outcome.fit.seconds));
}

/// Without a given length of the pipeline: as its replicas have processes, and 1 where a process
/// has several copies.
void share_out(const CLI::App& subcommand, TrainFlags& train, int world) {
  if (subcommand.get_option(flag("ranks"))->count() > 0 || !train.plan.empty()) return;
  const std::int64_t copies = train.data_parallel;
  require(copies >= 1 && (world % copies == 0 || copies % world == 0),
          named("data_parallel") + " " + std::to_string(copies) + ": " + processes(world) +
              (world == 1 ? " is" : " are") + " not shared evenly by the replicas of a " +
              "pipeline");
  train.ranks = std::max<std::int64_t>(1, world / copies);
}

/// "1, 2 or 4".
std::string divisors_of(int number) {
  std::vector<std::string> texts;
  for (int i = 1; i <= number; ++i)
    if (number % i == 0) texts.push_back(std::to_string(i));
  const std::string last = texts.back();
  texts.pop_back();
  return texts.empty() ? last : fmt::format("{} or {}", fmt::join(texts, ", "), last);
}

void check_processes(const Grid& grid, int world) {
  const int places = grid.processes();
  const ParameterText copies = named("data_parallel") + " " + std::to_string(grid.data());
  require(places % world == 0,
          named("ranks") + " " + std::to_string(grid.pipeline()) +
              (grid.data() == 1 ? ParameterText("") : " x " + copies) + ": " + processes(world) +
              " for " + std::to_string(places) + (places == 1 ? " place" : " places") + "; " +
              divisors_of(places) + " would have as many each");
}

/// The train subcommand's own options, typed after "--". A dry run ends here; the first process
/// prints it.
TrainJob train_job(std::vector<std::string> words, const JobProcess& process) {
  const int world = process.processes;
  words.insert(words.begin(), "train");
  std::reverse(words.begin(), words.end());  // as CLI11 wants them
  CLI::App app("Train", "millrace");
  CLI::App& subcommand = *app.add_subcommand("train");
  TrainFlags train;
  add_train_flags(subcommand, train);
  check_values(subcommand);
  CLI::Option& executor = *subcommand.get_option("--executor");
  executor.group("");  // not in the help of what does not take it
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) throw ExitCode{app.exit(error)};  // --help
    throw InvalidArgument(usage_message(app, error, "train"));
  }
  if (!train.config.empty()) read_config(subcommand, train.config);
  train.start.attempt = process.attempt;
  train.start.began = process.began;
  take_settings(subcommand, train.start, world);
  if (executor.count() > 0 && executor.results().back() != "ranks")
    throw InvalidArgument("--executor " + executor.results().back() +
                          ": must be ranks, where each rank is a process");
  share_out(subcommand, train, world);
  TrainJob job = plan_job(subcommand, train);
  check_processes(job.grid(), world);
  if (train.dry_run) {
    if (process.number == 0) {
      supply_data(job, read_data(job));
      dry_run(std::cout, job);
    }
    throw ExitCode{0};
  }
  return job;
}

/// The ranks of the job that `process` is.
std::vector<Rank> ranks_of(const TrainJob& job, const JobProcess& process) {
  const int places = job.grid().processes() / process.processes;
  std::vector<Rank> ranks;
  for (int i = 0; i < places; ++i) ranks.push_back(Rank{process.number * places + i});
  return ranks;
}

bool needs_data(const TrainJob& job, Rank of_grid) {
  const Shape& shape = job.program.shape;
  const Rank rank = job.grid().place_of(of_grid);
  for (int i = 0; i < shape.replicas(); ++i)
    for (const int stage : {0, shape.stages() - 1})
      if (shape.rank(Replica{i}, Stage{stage}) == rank) return true;
  return false;
}

Dataset of_size(const std::string& name, std::int64_t samples, std::int64_t classes) {
  return make_dataset(
      name, Tensor(DType::F32, {samples, 0}), Tensor(DType::I32, {samples, 0}), classes);
}

/// The amount and the digest of the data, from a process that has read it; empty without data. The
/// digest matters because machines may have different files of one name.
std::string account_of(const TrainTest& data) {
  if (data.train.size() == 0) return {};
  return nlohmann::ordered_json{{"train", data.train.epoch_size()},
                                {"test", data.test.size()},
                                {"validation", data.validation.size()},
                                {"classes", data.train.classes},
                                {"contents",
                                 combine_digests({{"1", contents_digest(data.train)},
                                                  {"2", contents_digest(data.test)},
                                                  {"3", contents_digest(data.validation)}})}}
      .dump();
}

std::string described(const std::string& account) {
  const auto data = nlohmann::json::parse(account);
  return fmt::format("{} training samples, {} test samples, {} classes, contents {}",
                     data["train"].get<std::int64_t>(),
                     data["test"].get<std::int64_t>(),
                     data["classes"].get<std::int64_t>(),
                     data["contents"].get<std::string>());
}

/// The account of the processes with the first or the last stage; the others receive it.
std::string agreed_account(const std::string& mine, ProcessGroup& group) {
  std::string agreed;
  for (const std::string& theirs : group.gather(mine, Label::Data)) {
    if (!agreed.empty() && !theirs.empty() && agreed != theirs)
      throw Mismatch("data differs: " + described(agreed) + " here, " + described(theirs) +
                     " there");
    if (agreed.empty()) agreed = theirs;
  }
  return agreed;
}

/// As much data, which is elsewhere.
TrainTest data_of(const std::string& account, const std::string& name) {
  const auto data = nlohmann::json::parse(account);
  const auto part = [&](const char* size) {
    return of_size(name, data[size].get<std::int64_t>(), data["classes"].get<std::int64_t>());
  };
  return {part("train"), part("test"), part("validation")};
}

/// What the places of a process have in common.
struct ProcessShare {
  ProcessShare(const JobProcess& of, TrainJob whole)
      : process(of), job(std::move(whole)), ranks(ranks_of(job, process)) {}

  JobProcess process;
  TrainJob job;
  std::vector<Rank> ranks;
  TrainTest data;       ///< as read here, until the work begins
  std::string account;  ///< of it; empty: only other processes need data
  std::once_flag begun;
  std::optional<StopSignals> signals;  ///< of several places; one alone has its own
};

/// Every rank asks the others; all get the same answers.
void train_place(ProcessShare& share, Endpoint& endpoint, ProcessGroup& group) {
  const std::string account = agreed_account(share.account, group);
  const bool several = share.ranks.size() > 1;
  std::call_once(share.begun, [&] {
    if (share.account.empty()) share.data = data_of(account, share.job.flags.data);
    supply_data(share.job, std::move(share.data));
    if (several && stops_when_asked(share.job)) share.signals.emplace();
  });
  const TrainOutcome outcome = run_training(share.job,
                                            {.endpoint = &endpoint,
                                             .group = &group,
                                             .is_thread = several,
                                             .processes = share.process.processes,
                                             .result_mark = result_mark(share.process.directory)});
  note_end(outcome, share.process, endpoint.rank());
}

}  // namespace

CheckedWork check_train(const std::vector<std::string>& options, int processes, bool restarts) {
  const TrainJob job = train_job(options, {.processes = processes});
  const std::string& save = job.options.save.folder;
  require(!restarts || !job.flags.start.from.empty() || find_checkpoints(save).empty(), [&] {
    return fmt::format(
        "--save {}: has checkpoints of another run; resume it, or save to another folder", save);
  });
  return {.places = job.grid().processes() / processes, .save_folder = save};
}

RankWork train_work(const std::vector<std::string>& options,
                    const JobProcess& process,
                    std::chrono::milliseconds timeout) {
  const auto share = std::make_shared<ProcessShare>(process, train_job(options, process));
  TrainJob& job = share->job;
  job.options.save.patience = timeout;
  for (const Rank rank : share->ranks) note_begin(job, process, rank);
  // Before the ranks meet, so that the rank that misses a file reports it.
  const auto needs = [&](Rank rank) { return needs_data(job, rank); };
  if (std::ranges::any_of(share->ranks, needs)) share->data = read_data(job);
  share->account = account_of(share->data);
  return {.places = static_cast<int>(share->ranks.size()),
          .fields = hello_of(job),
          .depths = on_grid(channel_depths(job.model, job.plan(), job.options, job.grid().data()),
                            job.grid()),
          .run = [share](Endpoint& endpoint, ProcessGroup& group) {
            train_place(*share, endpoint, group);
          }};
}

}  // namespace millrace::cli
