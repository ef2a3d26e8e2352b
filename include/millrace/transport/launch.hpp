// A program's part in `millrace launch -n 4 -- ./program`: one call that finds out who this process
// is, where the others are and which transport they use, and meets them. Of the component launch.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/core/ids.hpp"
#include "millrace/transport/endpoint.hpp"
#include "millrace/transport/listener.hpp"
#include "millrace/transport/process_group.hpp"

namespace millrace {

using Variables = std::map<std::string, std::string>;

/// The environment of this process. Thread-safety: while no thread changes it.
[[nodiscard]] Variables own_environment();

/// What is known about this process's place; unknown parts are empty.
struct Identity {
  std::optional<int> rank = {};
  std::optional<int> world = {};
  std::string rendezvous = {};    ///< "tcp://host:port"
  std::string source = {};        ///< what said the rank, for reports
  std::string world_source = {};  ///< the same of the world
};

/// What was said explicitly counts before all variables. The variables are those of millrace
/// (MILLRACE_RANK, MILLRACE_WORLD, MILLRACE_RENDEZVOUS), Open MPI, MPICH, SLURM, torchrun and
/// Kubernetes indexed jobs (which set no world). Of launchers inside each other the innermost
/// counts: torchrun (RANK with TORCHELASTIC_RUN_ID or LOCAL_RANK) before mpirun, and both before
/// the step of srun or the pod around them. What SLURM says counts inside a step of srun alone
/// (SLURM_STEP_ID): a batch script has a rank as well.
///
/// Throws Mismatch when two sources that count disagree about rank or world, with both sources and
/// the way out; InvalidArgument when a variable is not a number or the rank is outside the world.
[[nodiscard]] Identity find_identity(const Identity& explicitly, const Variables& variables);

/// Whether mpirun of some MPI started this process, and not torchrun inside it. An engine that
/// sets the variables of MPICH's (srun) is none.
[[nodiscard]] bool started_by_mpirun(const Variables& variables);

/// The variables in which engines say a rank or a number of ranks.
[[nodiscard]] std::vector<std::string> identity_variables();

/// What connects the ranks of a job.
enum class Backend : std::uint8_t {
  SharedMemory,  ///< "shm"
  Ipc,           ///< "ipc"
  Tcp,           ///< "tcp"
  Mixed,         ///< "mixed": tcp, and shared memory between ranks of one host
  Mpi            ///< "mpi"
};

/// The backend with this name, built or not; throws InvalidArgument for another name.
[[nodiscard]] Backend backend_of(std::string_view name);
[[nodiscard]] std::string_view name_of(Backend backend);

/// Whether its ranks listen at addresses, and need keys.
[[nodiscard]] bool uses_tcp(Backend backend);

/// Where a process is in its job, set by what started it. As variables, each MILLRACE_ and: RANK,
/// WORLD, RENDEZVOUS, JOB, ENDPOINT, INTERFACE, KEYS or KEYS_FD, INSECURE, CORE_DUMPS,
/// HEARTBEAT_TIMEOUT, JOIN_TIMEOUT and ACTION_TIMEOUT (seconds), LAUNCH (the directory), LOG_DIR,
/// RESTART, BEGAN (seconds since 1970).
struct LaunchConfig {
  Membership member;
  std::string rendezvous = {};  ///< "ipc://path", "tcp://host:port"; empty: one rank, or mpi
  Backend backend = Backend::Tcp;
  std::string interface = "127.0.0.1";  ///< tcp: the one address to listen on; "auto": see join
  /// tcp: a folder that all ranks see, not made yet, in which rank 0 leaves keys for all and where
  /// it really listens: at the first free port from that of `rendezvous` on. Empty: there is none.
  std::string shared = {};
  std::string keys = {};     ///< tcp: this rank's file of keys, or the folder of all of them
  int keys_descriptor = -1;  ///< tcp: that file, open; -1: none
  bool insecure = false;     ///< tcp without keys
  bool core_dumps = false;   ///< leave them though there are keys, which they would hold
  std::chrono::milliseconds heartbeat_timeout{10'000};  ///< see RendezvousOptions
  std::chrono::milliseconds join_timeout{60'000};       ///< until all ranks must have met
  std::optional<std::chrono::milliseconds> action_timeout = {};
  int places = 1;                  ///< mpi: ranks of every process, as MpiOptions::places
  std::string directory = {};      ///< private, of the launcher; empty: there is none
  std::string log_directory = {};  ///< for what a rank writes next to its log; empty: none is kept
  int attempt = 0;                 ///< restarts of the job before this start of its ranks
  double began = 0;                ///< the first attempt, in seconds since 1970; 0: not known

  /// The file that says which rank ended too soon, and the one that says that this rank has joined;
  /// empty without a launcher.
  [[nodiscard]] std::string failure_notice() const;
  [[nodiscard]] std::string joined_mark() const;

  /// The training step of a rank on this host, and after its process was killed the last one; empty
  /// if it has none or has ended by itself, and during an evaluation. For the launcher.
  [[nodiscard]] std::optional<std::int64_t> step_of(Rank rank) const;
};

/// The backend named `asked`. "auto" is Mpi under mpirun where that is built in, SharedMemory where
/// MILLRACE_RENDEZVOUS is a path of this host and its processes can share memory, else Mixed.
/// Throws InvalidParameter for an unknown name and for a backend that is not built in.
[[nodiscard]] Backend chosen_backend(std::string_view asked, const Variables& variables);

/// The variables that say `place`, and the names of all that may.
[[nodiscard]] Variables launch_variables(const LaunchConfig& place);
[[nodiscard]] std::vector<std::string> launch_variable_names();

/// The place that `variables` say, where the engines of find_identity count too; rank 0 of a world
/// of one where they say nothing. What srun says is enough for a meeting. Throws Mismatch when they
/// contradict each other, InvalidArgument when one is not a number or is missing.
[[nodiscard]] LaunchConfig launch_config(const Variables& variables);

/// The same with this process's environment; nothing else in the library reads that. Messages name
/// parameters by their variables.
[[nodiscard]] LaunchConfig own_launch_config();

struct JoinOptions {
  /// A program's own settings, compared at the meeting: build_fields() (training/ranks.hpp)
  /// and what the program adds. A trainer compares its own settings by itself.
  HelloFields fields = {};
  /// See channel_depths; channels not named here are unbounded.
  std::vector<ChannelDepth> depths = {};
  /// As RendezvousOptions::progress.
  std::function<void(int came)> progress = {};
};

/// A rank that has met the others. Destroyed without leave(), it is lost to all that still wait for
/// it; a failure that all ranks throw after the same step (Diverged, Mismatch) is a reason to
/// leave. Thread-safety: externally synchronised.
class JoinedRank {
 public:
  JoinedRank(std::unique_ptr<Endpoint> endpoint,
             std::string log_directory,
             std::string connections = {},
             int attempt = 0);

  [[nodiscard]] Rank rank() const { return endpoint_->rank(); }
  [[nodiscard]] int world() const { return endpoint_->world(); }
  /// Both for rank_parts, whose trainer must not outlive this.
  [[nodiscard]] Endpoint& endpoint() { return *endpoint_; }
  [[nodiscard]] ProcessGroup& group() { return group_; }
  /// As LaunchConfig::log_directory.
  [[nodiscard]] const std::string& log_directory() const { return log_directory_; }

  /// As LaunchConfig::attempt. A program that saves continues from its newest checkpoint if it is
  /// not 0.
  [[nodiscard]] int attempt() const { return attempt_; }

  /// As Listener::connections.
  [[nodiscard]] const std::string& connections() const { return connections_; }

  /// Leaves when nothing is left to do, and waits until the others have all that was sent.
  /// Throws TransportError when they do not take it in time.
  void leave(std::chrono::milliseconds longest = std::chrono::seconds(30));

 private:
  std::unique_ptr<Endpoint> endpoint_;
  ProcessGroup group_;
  std::string log_directory_;
  std::string connections_;
  int attempt_ = 0;
};

/// What a process of several ranks does before they join, each on a thread of its own: MPI, where
/// that is the endpoint, is to be started by the thread that the process ends with.
void begin_ranks(const LaunchConfig& place);

/// Meets the other ranks of `place`; blocks until all have come. With the interface "auto" a rank
/// listens at the address from which it reaches the meeting. Reads the keys, closes their
/// descriptor and, unless core_dumps, makes this process one that leaves no core dump. Throws
/// InvalidParameter on a place that makes no sense, what read_key_file and meet throw.
[[nodiscard]] JoinedRank join(const LaunchConfig& place, const JoinOptions& options = {});

/// The same at own_launch_config(). A program without a launcher is rank 0 of a world of one.
///
///     JoinedRank rank = join_launch({.fields = {{"corpus", digest}}});
///     const Plan plan = {generate("1f1b", {.ranks = rank.world(), .micro_batches = 8})};
///     Trainer trainer(rank_parts(model, plan, options, rank.endpoint(), rank.group()));
///     (void)trainer.fit(data);
///     rank.leave();
[[nodiscard]] JoinedRank join_launch(const JoinOptions& options = {});

/// The same at a place that own_launch_config() gave, or one that stands for one of several ranks
/// in this process.
[[nodiscard]] JoinedRank join_launch_at(const LaunchConfig& place, const JoinOptions& options = {});

}  // namespace millrace
