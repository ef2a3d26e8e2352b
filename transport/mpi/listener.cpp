// A rank among those of mpirun, before it knows what the others were built for.
#include <limits>
#include <utility>

#include "millrace/core/error.hpp"
#include "transport/mpi/address.hpp"
#include "transport/mpi/endpoint.hpp"
#include "transport/mpi/rendezvous_channel.hpp"
#include "transport/mpi/world.hpp"
#include "transport/wire/request.hpp"

namespace millrace {

namespace {

void check_options(const MpiOptions& options) {
  check_member(options);
  require(options.places >= 1,
          std::to_string(options.places) + " ranks to a process; there is at least one");
  require(options.largest_payload <= std::numeric_limits<int>::max(),
          "the largest payload is " + std::to_string(options.largest_payload) +
              " bytes; MPI sends at most 2147483647 at once");
}

void check_world(const MpiOptions& options, const mpi::World& world) {
  require(options.places <= world.most_places(),
          std::to_string(options.places) + " ranks to a process; tags of " + mpi_library() +
              " tell " + std::to_string(world.most_places()) + " apart: start more processes");
  const int process = mpi::seat_of(options.rank, options.places).process;
  const int processes = mpi::seat_of(Rank{options.world - 1}, options.places).process + 1;
  if (world.processes() >= processes && world.process() == process) return;
  const std::string each =
      options.places == 1 ? "" : ", " + std::to_string(options.places) + " to a process";
  throw Mismatch("this is rank " + std::to_string(options.rank.value) + " of " +
                 std::to_string(options.world) + each + ", but " + mpi_library() + " says " +
                 (each.empty() ? "rank " : "process ") + std::to_string(world.process()) + " of " +
                 std::to_string(world.processes()) +
                 "; start the processes with the mpirun of the MPI that they were built with");
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

/// Who has not met the others may leave one of them waiting.
MpiListener::~MpiListener() {
  if (!parts_->done) mpi::World::started().abandon();
}

const Membership& MpiListener::member() const {
  return parts_->options;
}

PeerAddress MpiListener::address() const {
  return mpi::peer_address(parts_->options.rank);
}

std::unique_ptr<RendezvousChannel> MpiListener::rendezvous_channel(const std::string& /*url*/,
                                                                   std::size_t longest_note) {
  return mpi::make_rendezvous_channel(parts_->options, parts_->options.places, longest_note);
}

std::unique_ptr<Endpoint> MpiListener::open(const std::vector<PeerAddress>& addresses) {
  require(!std::exchange(parts_->open, true), "this listener was opened before");
  const auto world = static_cast<std::size_t>(parts_->options.world);
  require(addresses.size() == world,
          "there are " + std::to_string(addresses.size()) + " addresses for " +
              std::to_string(world) + " ranks");
  for (std::size_t i = 0; i < world; ++i)
    mpi::check_address(addresses[i], Rank{static_cast<int>(i)});
  auto endpoint = mpi::make_endpoint(parts_->options);
  parts_->done = true;
  return endpoint;
}

}  // namespace millrace
