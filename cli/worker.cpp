// millrace worker: one rank of a training. Started by launch, or by an engine on any machine.
#include <algorithm>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>

#include <nlohmann/json.hpp>

#include "cli/environment.hpp"
#include "cli/rank_measurement.hpp"
#include "cli/train_options.hpp"
#include "cli/train_outputs.hpp"
#include "cli/train_report.hpp"
#include "cli/verbs.hpp"
#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/text.hpp"
#include "millrace/training/endpoint_team.hpp"
#include "millrace/training/rank_parts.hpp"
#include "millrace/transport/environment.hpp"
#include "millrace/transport/rendezvous.hpp"

namespace millrace::cli {

namespace {

struct WorkerFlags {
  std::optional<int> rank, world;
  std::string rendezvous, keys, obituary;
  std::string link = "tcp";
  std::string interface = "127.0.0.1";
  std::uint64_t job = 0;
  double silence = 10;
  double hang = 10;
  double patience = 60;
  bool insecure = false;
  std::vector<std::string> command;
};

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(1000 * seconds));
}

CurveRing read_keys(const std::string& path) {
  std::ifstream file(path);
  require(file.good(), "--keys " + path + ": the file cannot be opened");
  CurveRing ring;
  file >> ring.own.public_key >> ring.own.secret_key;
  for (std::string key; file >> key;) ring.public_keys.push_back(key);
  return ring;
}

ZeroMqOptions endpoint_options(const WorkerFlags& flags,
                               const Identity& identity,
                               const TrainJob& job) {
  require(flags.link == "ipc" || flags.link == "tcp",
          "--endpoint " + flags.link + ": known are ipc, tcp");
  ZeroMqOptions options;
  options.rank = Rank{*identity.rank};
  options.world = *identity.world;
  options.link = flags.link == "ipc" ? ZeroMqLink::Ipc : ZeroMqLink::Tcp;
  if (identity.rendezvous.starts_with("ipc://"))
    options.directory = identity.rendezvous.substr(6, identity.rendezvous.rfind('/') - 6);
  options.interface = flags.interface;
  if (!flags.keys.empty()) options.keys = read_keys(flags.keys);
  options.insecure = flags.insecure;
  options.job = flags.job;
  options.depths = channel_depths(job.program);
  options.silence = milliseconds(flags.silence);
  options.hang = milliseconds(flags.hang);
  return options;
}

std::string dispatch_level() {
  if (__builtin_cpu_supports("avx512f")) return "avx512";
  return __builtin_cpu_supports("avx2") ? "avx2" : "baseline";
}

std::string joined(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers) text += (text.empty() ? "" : ",") + std::to_string(number);
  return text;
}

/// Everything that decides bits, or whether two ranks understand each other.
HelloFields hello_of(const TrainJob& job) {
  const TrainerOptions& options = job.options;
  return {{"library version", MILLRACE_VERSION},
          {"plan", plan_hash(job.program)},
          {"model", job.model.text},
          {"cut", joined(options.boundaries)},
          {"data", job.flags.data},
          {"precision", "f32"},
          {"seed", std::to_string(options.seed)},
          {"batch size", std::to_string(options.batch_size)},
          {"epochs", std::to_string(options.epochs)},
          {"steps", std::to_string(options.steps)},
          {"optimizer", std::string(name_of(options.optimizer.kind))},
          {"learning rate", std::to_string(options.learning_rate.base)},
          {"weight decay", std::to_string(options.optimizer.weight_decay)},
          {"clip norm", options.clip_norm ? std::to_string(*options.clip_norm) : "none"},
          {"recompute", options.recompute ? "yes" : "no"},
          {"processor", dispatch_level()},
          {"checkpoint step", "0"}};
}

/// The train verb's own options, typed after "--".
TrainJob train_job(std::vector<std::string> words, int world) {
  require(!words.empty() && words.front() == "train",
          "a worker runs train: worker ... -- train ...");
  words.erase(words.begin());
  std::reverse(words.begin(), words.end());  // as CLI11 wants them
  CLI::App verb("Train", "train");
  TrainFlags train;
  add_train_flags(verb, train);
  verb.parse(words);
  if (!train.config.empty()) read_config(verb, train.config);
  if (verb.get_option("--stages")->count() == 0 && train.plan.empty()) train.stages = world;
  TrainJob job = plan_job(verb, train);
  require(job.program.shape.ranks == world,
          "--stages " + std::to_string(job.program.shape.ranks) + ": there are " +
              std::to_string(world) + " processes, one per pipeline rank");
  return job;
}

bool needs_data(const TrainJob& job, Rank rank) {
  const Shape& shape = job.program.shape;
  for (int i = 0; i < shape.replicas(); ++i)
    for (const int stage : {0, shape.stages() - 1})
      if (shape.rank(Replica{i}, Stage{stage}) == rank) return true;
  return false;
}

Dataset of_size(const std::string& name, std::int64_t samples) {
  return {name, Tensor(DType::F32, {samples, 0}), Tensor(DType::I32, {samples, 0})};
}

/// Ranks with the first or the last stage have read the data; the others hear how much it is.
TrainTest agreed_data(const TrainJob& job, TrainTest mine, Team& team) {
  std::string said;
  for (const std::string& theirs : team.gather(
           mine.train.size() == 0 ? std::string()
                                  : std::to_string(mine.train.size()) + " training samples, " +
                                        std::to_string(mine.test.size()) + " test samples")) {
    if (!said.empty() && !theirs.empty() && said != theirs)
      throw Mismatch("data differs: " + said + " here, " + theirs + " there");
    if (said.empty()) said = theirs;
  }
  if (mine.train.size() != 0) return mine;
  std::istringstream words(said);
  std::int64_t train = 0;
  std::int64_t test = 0;
  std::string word;
  words >> train >> word >> word >> test;
  return {of_size(job.flags.data, train), of_size(job.flags.data, test)};
}

void report(const TrainJob& job, const TrainOutcome& outcome) {
  if (job.flags.json) {
    auto document = nlohmann::ordered_json::parse(outcome_json(job, outcome));
    document["processes"] = job.options.ranks;
    std::cout << document.dump(2) << std::endl;
    return;
  }
  print_outcome(std::cout, job, outcome);
  std::cout << job.options.ranks << " processes" << std::endl;
}

void tell_epoch(std::ostream& stream, const EpochReport& epoch) {
  stream << "epoch " << epoch.epoch + 1 << "  loss " << epoch.mean_loss() << "  "
         << static_cast<double>(epoch.samples) / std::max(epoch.seconds, 1e-9) << " samples/s"
         << std::endl;
}

/// The files, opened by the rank that writes them.
std::optional<TrainOutputs> outputs_of(const TrainJob& job, bool speaks) {
  if (!speaks) return std::nullopt;
  return std::optional<TrainOutputs>(std::in_place, job.flags);
}

void train(const TrainJob& job, Endpoint& endpoint, Team& team) {
  const bool speaks = endpoint.rank() == Rank{0};
  auto outputs = outputs_of(job, speaks);
  Trainer trainer(rank_parts(job.model, job.program, job.options, endpoint, team), job.options);
  RankMeasurement measurement(job, trainer, endpoint.rank());
  trainer.on_step = [&](const StepReport& report) { measurement.after_step(report); };
  if (speaks)
    trainer.on_epoch = [&](const EpochReport& epoch) {
      tell_epoch(job.flags.json ? std::cerr : std::cout, epoch);
    };
  TrainOutcome outcome;
  outcome.fit = trainer.fit(job.data.train);
  outcome.updates = trainer.global_step();
  outcome.score = trainer.evaluate(job.data.test);
  outcome.weights_hash = trainer.weights_hash();
  const RankMeasurement::Whole whole = measurement.gather(team, outcome);
  if (!outputs) return;
  outputs->write(trainer.executor().program(), whole.last, whole.cost);
  report(job, outcome);
}

void work(const WorkerFlags& flags) {
  const Identity identity = find_identity(
      {.rank = flags.rank, .world = flags.world, .rendezvous = flags.rendezvous}, environment());
  require(identity.rank && identity.world,
          "nobody says which rank this is: give --rank and --world, or start it by an engine");
  require(!identity.rendezvous.empty() || *identity.world == 1,
          "nobody says where the ranks meet: give --rendezvous tcp://host:port");
  TrainJob job = train_job(flags.command, *identity.world);
  TrainTest data;
  if (needs_data(job, Rank{*identity.rank})) data = read_data(job);
  const auto endpoint = meet({.url = identity.rendezvous,
                              .fields = hello_of(job),
                              .patience = milliseconds(flags.patience),
                              .obituary = flags.obituary},
                             endpoint_options(flags, identity, job),
                             std::make_shared<ZeroMqContext>());
  EndpointTeam team(*endpoint);
  supply_data(job, agreed_data(job, std::move(data), team));
  train(job, *endpoint, team);
  endpoint->goodbye(std::chrono::steady_clock::now() + std::chrono::seconds(30));
}

}  // namespace

void add_worker(CLI::App& app) {
  CLI::App* verb = app.add_subcommand(
      "worker", "One rank of a training, started by an engine: worker [options] -- train ...");
  auto flags = std::make_shared<WorkerFlags>();
  verb->add_option("--rank", flags->rank, "This process's rank; else the engine's variables");
  verb->add_option("--world", flags->world, "Number of processes; else the engine's variables");
  verb->add_option("--rendezvous", flags->rendezvous, "Where rank 0 listens: tcp://host:port");
  verb->add_option("--endpoint", flags->link, "ipc or tcp")->capture_default_str();
  verb->add_option("--interface", flags->interface, "Address to listen on, for tcp")
      ->capture_default_str();
  verb->add_option("--keys", flags->keys, "File of mode 0600: own key pair, public keys of all");
  verb->add_option("--job", flags->job, "Number of the job; equal on all ranks")
      ->capture_default_str();
  verb->add_option(
          "--silence", flags->silence, "Seconds without a word until a rank counts as hung")
      ->capture_default_str();
  verb->add_option("--hang",
                   flags->hang,
                   "Least seconds of one action until its rank counts as hung; stretches "
                   "to 16 times the longest of its kind, and 12 times for the first")
      ->capture_default_str();
  verb->add_option("--patience", flags->patience, "Seconds until all ranks must have met")
      ->capture_default_str();
  verb->add_option("--obituary",
                   flags->obituary,
                   "File that appears when a rank ended before all had met, and says which");
  verb->add_flag("--insecure", flags->insecure, "tcp without keys");
  verb->add_option("command", flags->command, "-- train and its options")->required();
  verb->callback([flags] { work(*flags); });
}

}  // namespace millrace::cli
