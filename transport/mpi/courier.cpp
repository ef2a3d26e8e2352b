// See courier.hpp. A note is a header of fixed size and its text in one message.
#include "transport/mpi/courier.hpp"

#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "transport/mpi/pause.hpp"
#include "transport/mpi/world.hpp"
#include "transport/wire/envelope.hpp"

namespace millrace::mpi {

namespace {

class MpiCourier final : public Courier {
 public:
  MpiCourier(const Membership& member, std::size_t longest_note)
      : world_(World::started()),
        longest_(kHeaderBytes + longest_note),
        tag_(world_.tag_of(member.epoch, Purpose::Note)) {}

  ~MpiCourier() override {
    // MPI writes into the note until it has come; who left half of it has left MPI too.
    if (request_ == MPI_REQUEST_NULL) return;
    static_cast<void>(new std::vector<std::byte>(std::move(note_)));
    world_.abandon();
  }

  void send(Rank to, std::span<const std::byte> header, std::string_view text) override {
    std::vector<std::byte> bytes(header.size() + text.size());
    std::memcpy(bytes.data(), header.data(), header.size());
    if (!text.empty()) std::memcpy(bytes.data() + header.size(), text.data(), text.size());
    const std::lock_guard lock(world_.turn());
    world_.send(to, tag_, std::move(bytes));
  }

  std::optional<MeetingNote> receive(std::chrono::milliseconds longest) override {
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
  bool begin() {
    Waiting found;
    if (!world_.waits(tag_, found)) return false;
    if (static_cast<std::size_t>(found.bytes) > longest_)
      throw TransportError("rank " + std::to_string(found.from.value) + " sent a note of " +
                           std::to_string(found.bytes) + " bytes to the meeting");
    from_ = found.from;
    note_.resize(static_cast<std::size_t>(found.bytes));
    request_ = world_.receive(found, note_.data());
    return true;
  }

  [[nodiscard]] std::optional<MeetingNote> opened() const {
    if (note_.size() < kHeaderBytes) return std::nullopt;
    const auto text = std::span(note_).subspan(kHeaderBytes);
    return MeetingNote{from_,
                       {note_.begin(), note_.begin() + kHeaderBytes},
                       {reinterpret_cast<const char*>(text.data()), text.size()}};
  }

  World& world_;
  const std::size_t longest_;
  const int tag_;
  Rank from_;
  std::vector<std::byte> note_;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

}  // namespace

std::unique_ptr<Courier> make_courier(const Membership& member, std::size_t longest_note) {
  return std::make_unique<MpiCourier>(member, longest_note);
}

}  // namespace millrace::mpi
