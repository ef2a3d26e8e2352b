// A rank among those of mpirun, before it knows what the others were built for.
#include <fmt/format.h>
#include <limits>
#include <utility>

#include "millrace/core/error.hpp"
#include "transport/link/endpoint.hpp"
#include "transport/mpi/backend.hpp"
#include "transport/mpi/message_loop.hpp"

namespace millrace {

namespace {

void check_options(const MpiOptions& options) {
  check_member(options);
  require(options.places >= 1,
          fmt::format("{} ranks to a process; there is at least one", options.places));
  require(options.largest_payload <= std::numeric_limits<int>::max(),
          fmt::format("the largest payload is {} bytes; MPI sends at most 2147483647 at once",
                      options.largest_payload));
}

void check_world(const MpiOptions& options, const mpi::World& world) {
  require(options.places <= world.most_places(),
          fmt::format("{} ranks to a process; tags of {} distinguish {}: start more processes",
                      options.places,
                      mpi_library(),
                      world.most_places()));
  const int process = mpi::position_of(options.rank, options.places).process;
  const int processes = mpi::position_of(Rank{options.world - 1}, options.places).process + 1;
  if (world.processes() >= processes && world.process() == process) return;
  const bool one = options.places == 1;
  throw Mismatch(
      fmt::format("this is rank {} of {}{}, but {} says {} {} of {}; start the processes with the "
                  "mpirun of the MPI that they were built with",
                  options.rank.value,
                  options.world,
                  one ? "" : fmt::format(", {} to a process", options.places),
                  mpi_library(),
                  one ? "rank" : "process",
                  world.process(),
                  world.processes()));
}

PeerAddress address_of(Rank rank) {
  return {fmt::format("mpi:{}", rank.value)};
}

}  // namespace

void start_mpi() {
  static_cast<void>(mpi::World::started());
}

struct MpiListener::Parts {
  MpiOptions options;
  bool open = false;
  bool done = false;
};

MpiListener::MpiListener(const MpiOptions& options) : parts_(std::make_unique<Parts>()) {
  check_options(options);
  check_world(options, mpi::World::started());
  parts_->options = options;
}

/// A rank that has not met the others may leave one of them waiting.
MpiListener::~MpiListener() {
  if (!parts_->done) mpi::World::started().abandon();
}

const Membership& MpiListener::member() const {
  return parts_->options;
}

PeerAddress MpiListener::address() const {
  return address_of(parts_->options.rank);
}

std::unique_ptr<RendezvousChannel> MpiListener::rendezvous_channel(const std::string& /*url*/,
                                                                   std::size_t longest_note) {
  return mpi::make_rendezvous_channel(parts_->options, parts_->options.places, longest_note);
}

std::unique_ptr<Endpoint> MpiListener::open(const std::vector<PeerAddress>& addresses) {
  require(!std::exchange(parts_->open, true), "this listener was opened before");
  const MpiOptions& options = parts_->options;
  check_addresses(addresses, options.world);
  for (int i = 0; i < options.world; ++i)
    if (const PeerAddress& given = addresses[static_cast<std::size_t>(i)];
        given != address_of(Rank{i}))
      throw TransportError(
          fmt::format("'{}' is not the address of rank {} over MPI", given.text, i));
  auto endpoint = std::make_unique<LinkedEndpoint<mpi::MessageLoop>>(
      options, std::make_unique<ProgressSlot>(std::string()));
  parts_->done = true;
  return endpoint;
}

/// Ranks built with different libraries could not even say so; versions of one library could.
Launched mpi::launched(const LaunchConfig& config, const std::vector<ChannelDepth>& depths) {
  auto options = link_options<MpiOptions>(config, depths);
  options.places = config.places;
  return {.listener = std::make_unique<MpiListener>(options),
          .url = "MPI",
          .fields = {{"MPI", mpi_library()}}};
}

}  // namespace millrace
