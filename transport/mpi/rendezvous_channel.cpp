// A note is one message: a header of fixed size, a text, and the sender's index among the ranks of
// its process. A sender that counts these ranks differently is answered at the receiving process,
// so that it learns the difference.
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "transport/mpi/backend.hpp"
#include "transport/mpi/pause.hpp"
#include "transport/mpi/world.hpp"
#include "transport/wire/envelope.hpp"

namespace millrace::mpi {

namespace {

class MpiChannel final : public RendezvousChannel {
 public:
  MpiChannel(const Membership& member, int places, std::size_t longest_note)
      : world_(World::started()),
        longest_(kHeaderBytes + longest_note + sizeof(Place)),
        epoch_(member.epoch),
        place_(position_of(member.rank, places).place) {}

  ~MpiChannel() override {
    // MPI writes into the note until it has come; who left half of it has left MPI too.
    if (request_ == MPI_REQUEST_NULL) return;
    static_cast<void>(new std::vector<std::byte>(std::move(note_)));
    world_.abandon();
  }

  void send(Rank to, std::span<const std::byte> header, std::string_view text) override {
    std::vector<std::byte> bytes(header.size() + text.size() + sizeof(Place));
    std::memcpy(bytes.data(), header.data(), header.size());
    if (!text.empty()) std::memcpy(bytes.data() + header.size(), text.data(), text.size());
    std::memcpy(bytes.data() + header.size() + text.size(), &place_, sizeof(Place));
    // Rank 0 is the first of the first process, however others count; it answers the sender.
    const std::lock_guard lock(world_.turn());
    if (to == Rank{0}) return world_.send(0, tag_at(0), std::move(bytes));
    for (const Position& position : heard_[to.value])
      world_.send(position.process, tag_at(position.place), bytes);
  }

  std::optional<RendezvousMessage> receive(std::chrono::milliseconds longest) override {
    Pause pause(std::chrono::steady_clock::now() + longest);
    do {
      const std::lock_guard lock(world_.turn());
      world_.sweep();
      if (request_ == MPI_REQUEST_NULL && !begin()) continue;
      if (World::arrived(request_, note_.size())) return opened();
    } while (pause.sleep());
    return std::nullopt;
  }

 private:
  using Place = std::uint32_t;

  [[nodiscard]] int tag_at(int place) const {
    return world_.tag_of(epoch_, Purpose::Note, 0, place);
  }

  bool begin() {
    Waiting found;
    if (!world_.waits(tag_at(place_), found)) return false;
    if (static_cast<std::size_t>(found.bytes) > longest_)
      throw TransportError("process " + std::to_string(found.from) + " sent a note of " +
                           std::to_string(found.bytes) + " bytes to the meeting");
    from_ = found.from;
    note_.resize(static_cast<std::size_t>(found.bytes));
    request_ = world_.receive(found, note_.data());
    return true;
  }

  /// From the rank that its header claims.
  [[nodiscard]] std::optional<RendezvousMessage> opened() {
    if (note_.size() < kHeaderBytes + sizeof(Place)) return std::nullopt;
    const auto note = std::span(note_);
    const auto header = note.first(kHeaderBytes);
    const auto text = note.subspan(kHeaderBytes, note.size() - kHeaderBytes - sizeof(Place));
    Place place = 0;
    std::memcpy(&place, note.last(sizeof(Place)).data(), sizeof(Place));
    if (place >= static_cast<Place>(world_.most_places())) return std::nullopt;
    const Rank from = envelope_of(header).source;
    heard_[from.value].insert({from_, static_cast<int>(place)});
    return RendezvousMessage{from,
                             {header.begin(), header.end()},
                             {reinterpret_cast<const char*>(text.data()), text.size()}};
  }

  World& world_;
  const std::size_t longest_;
  const std::uint32_t epoch_;
  const int place_;
  std::map<int, std::set<Position>> heard_;  // by rank: where those are that say to be it
  int from_ = 0;                             // the process that sent `note_`
  std::vector<std::byte> note_;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

}  // namespace

std::unique_ptr<RendezvousChannel> make_rendezvous_channel(const Membership& member,
                                                           int places,
                                                           std::size_t longest_note) {
  return std::make_unique<MpiChannel>(member, places, longest_note);
}

}  // namespace millrace::mpi
