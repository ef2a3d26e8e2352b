// Endpoints over MPI, with a process per rank and with two ranks to each: the conformance suite,
// and what only ranks of mpirun can suffer. Every process of mpirun runs every test
// (tests/engines/mpi.sh).
#include "millrace/transport/mpi.hpp"

#include <csignal>
#include <ctime>
#include <fstream>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>

#include "millrace/transport/endpoint.hpp"
#include "millrace/transport/listener.hpp"
#include "millrace/transport/process_group.hpp"
#include "mpi/processes.hpp"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::StartsWith;
using testing_mpi::this_process;
using testing_transport::forward_tag;
using testing_transport::soon;
using testing_transport::TransportConformance;
using testing_transport::TransportUnderTest;

/// No two tests have one in common.
std::uint32_t epoch_of(std::uint32_t number) {
  return 32 * testing_mpi::tests_begun() + number;
}

MpiOptions options_of(int world) {
  MpiOptions options;
  options.rank = Rank{this_process().number};
  options.world = world;
  options.epoch = epoch_of(0);
  return options;
}

/// Ranks of processes that are `places` each.
TransportUnderTest mpi_of(const std::string& name, int places) {
  const auto join = [places](Rank rank,
                             int world,
                             const std::vector<ChannelDepth>& depths,
                             const std::string& /*directory*/,
                             std::uint32_t number) {
    MpiOptions options;
    options.rank = rank;
    options.world = world;
    options.epoch = epoch_of(number);
    options.places = places;
    options.depths = depths;
    return meet({}, MpiListener(options));
  };
  return {.name = name, .make = {}, .join = join, .process = this_process, .places = places};
}

/// What each of all processes does with its endpoint, which ends only when all have done it.
class MpiRanks : public testing::Test {
 protected:
  MpiRanks() { static_cast<void>(this_process()); }
  ~MpiRanks() override { this_process().together(); }

  static void on_every_rank(const MpiOptions& options, const std::function<void(Endpoint&)>& work) {
    const auto endpoint = meet({}, MpiListener(options));
    work(*endpoint);
    this_process().together();
  }

  static int all() { return testing_mpi::process_count(); }
};

double own_cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

template <class Failure>
std::string words_of_failure(Endpoint& end, Rank from) {
  try {
    (void)end.receive(from, forward_tag(3, 1, 7), soon());
    ADD_FAILURE() << "something came";
  } catch (const Failure& failure) {
    return failure.what();
  }
  return {};
}

TEST_F(MpiRanks, WaitInATwentiethOfACore) {
  on_every_rank(options_of(all()), [](Endpoint& end) {
    const Rank next{(end.rank().value + 1) % end.world()};
    const double before = own_cpu_seconds();
    const auto start = std::chrono::steady_clock::now();
    EXPECT_THROW((void)end.receive(next, forward_tag(0), start + 2s), TransportError);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    EXPECT_LT(own_cpu_seconds() - before, 0.05 * took.count());
  });
}

TEST_F(MpiRanks, StoppedRank_IsReportedToAll) {
  MpiOptions options = options_of(all());
  options.heartbeat_timeout = 600ms;
  on_every_rank(options, [](Endpoint& end) {
    const auto pids = ProcessGroup(end).gather(std::to_string(::getpid()), Label::Values);
    if (end.rank() == Rank{2}) {
      ::raise(SIGSTOP);
      return;
    }
    const auto text = words_of_failure<PeerHangs>(end, Rank{end.rank().value == 3 ? 2 : 3});
    EXPECT_THAT(text, HasSubstr("rank 2 is silent; everyone waits for rank 2"));
    EXPECT_THAT(text,
                HasSubstr("waits for activation for stage 1, micro-batch 3 of step 7 from rank 3"));
    if (end.rank() == Rank{0}) ::kill(std::stoi(pids[2]), SIGCONT);
  });
}

TEST_F(MpiRanks, EndWithoutShutdown_IsLost) {
  const auto process = this_process();
  auto endpoint = meet({}, MpiListener(options_of(all())));
  if (process.number == 1)
    endpoint.reset();
  else
    EXPECT_THAT(words_of_failure<PeerLost>(*endpoint, Rank{1}), StartsWith("lost rank 1"));
  process.together();
}

TEST_F(MpiRanks, DifferentSettings_FailOnEveryRank) {
  const bool odd = this_process().number == 1;
  try {
    static_cast<void>(
        meet({.fields = {{"model", odd ? "b" : "a"}}}, MpiListener(options_of(all()))));
    ADD_FAILURE() << "they met";
  } catch (const Mismatch& mismatch) {
    EXPECT_STREQ(mismatch.what(), "model differs: rank 0 has 'a', rank 1 has 'b'");
  }
}

TEST_F(MpiRanks, RefuseAWorldThatMpiDoesNotSee) {
  MpiOptions options = options_of(all() + 1);
  EXPECT_THROW(MpiListener{options}, Mismatch);
  options = options_of(all());
  options.rank = Rank{(options.rank.value + 1) % options.world};
  EXPECT_THROW(MpiListener{options}, Mismatch);
  options = options_of(2 * all());
  EXPECT_THROW(MpiListener{options}, Mismatch);
  options.places = 2;
  options.rank = Rank{2 * ((options.rank.value + 1) % all())};
  EXPECT_THROW(MpiListener{options}, Mismatch);
}

TEST_F(MpiRanks, MoreRanksThanTags_AreRejected) {
  MpiOptions options = options_of(2);
  options.rank = Rank{0};
  options.places = 1'000'000;
  EXPECT_THAT([&] { MpiListener{options}; },
              testing::ThrowsMessage<InvalidArgument>(
                  testing::AllOf(StartsWith("1000000 ranks to a process; tags of "),
                                 HasSubstr(": start more processes"))));
  options.places = 0;
  EXPECT_THROW(MpiListener{options}, InvalidArgument);
}

/// Process 1 is ranks 2 and 3 of a world of 4, to the others a process is one rank.
TEST_F(MpiRanks, DifferentRanksPerProcess_FailOnEveryRank) {
  const bool odd = this_process().number == 1;
  MpiOptions options = options_of(odd ? 2 * all() : all());
  options.places = odd ? 2 : 1;
  const std::string world = std::to_string(all());
  const std::string larger = std::to_string(2 * all());
  const auto differs = testing::ThrowsMessage<Mismatch>("world differs: rank 0 has '" + world +
                                                        "', rank 2 has '" + larger + "'");
  const auto visit = [&](int place) {
    MpiOptions own = options;
    own.rank = Rank{options.rank.value * options.places + place};
    EXPECT_THAT([&] { static_cast<void>(meet({}, MpiListener(own))); }, differs);
  };
  std::vector<std::jthread> threads;
  for (int place = 0; place < options.places; ++place) threads.emplace_back(visit, place);
}

TEST(MpiLibrary, IsNamedWithItsVersion) {
  EXPECT_THAT(mpi_library(), testing::MatchesRegex("(Open MPI|MPICH) [0-9]+\\.[0-9.]+"));
}

INSTANTIATE_TEST_SUITE_P(Mpi,
                         TransportConformance,
                         testing::Values(mpi_of("mpi", 1),
                                         mpi_of("mpi, two ranks to a process", 2)));

}  // namespace
}  // namespace millrace
