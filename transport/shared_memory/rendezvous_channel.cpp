// The rendezvous channel over sockets of one host.
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "millrace/transport/private_directory.hpp"
#include "transport/shared_memory/backend.hpp"
#include "transport/shared_memory/descriptor_message.hpp"
#include "transport/wire/envelope.hpp"

namespace millrace::shared_memory {

namespace {

/// Interval at which a rank tries whether rank 0 has come.
constexpr std::chrono::milliseconds kAgain{10};

constexpr int kMostRanks = 1 << 16;

sockaddr_un name_of(const std::string& path) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  path.copy(name.sun_path, sizeof name.sun_path - 1);
  return name;
}

/// The rank whose file has that path, or -1.
int rank_of_file(const std::string& path) {
  const std::size_t begin = path.rfind("/r");
  if (begin == std::string::npos) return -1;
  int rank = -1;
  const char* end = path.data() + path.size();
  const auto read = std::from_chars(path.data() + begin + 2, end, rank);
  const bool good = read.ec == std::errc() && read.ptr != end && *read.ptr == '.';
  return good && rank >= 0 && rank < kMostRanks ? rank : -1;
}

/// Rank 0 is bound to the place of the meeting, every other rank to a file of its own, by which
/// rank 0 knows it.
class SharedMemoryChannel final : public RendezvousChannel {
 public:
  SharedMemoryChannel(const std::string& url,
                      std::size_t longest_note,
                      const SharedMemoryOptions& options)
      : options_(options),
        place_(rendezvous_path(url)),
        path_(is_host() ? place_ : file_of_rank(options, options.rank, "notes")),
        socket_(bind_socket(path_, SOCK_DGRAM)),
        room_(longest_note + kHeaderBytes) {
    const auto bytes = static_cast<int>(room_.size());
    // As far as the system allows; a longer note is refused when it is sent.
    ::setsockopt(socket_.number(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  }

  ~SharedMemoryChannel() override { ::unlink(path_.c_str()); }

  void send(Rank to, std::span<const std::byte> header, std::string_view text) override {
    std::vector<std::byte> note(header.begin(), header.end());
    const auto words = std::as_bytes(std::span(text));
    note.insert(note.end(), words.begin(), words.end());
    if (!post(to, note) && !is_host()) unsent_ = std::move(note);
  }

  std::optional<RendezvousMessage> receive(std::chrono::milliseconds longest) override {
    const auto end = std::chrono::steady_clock::now() + longest;
    while (!unsent_.empty() && std::chrono::steady_clock::now() < end) {
      if (post(Rank{0}, unsent_)) unsent_.clear();
      if (auto note = take(std::min(kAgain, longest))) return note;
    }
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    return take(std::max(left, std::chrono::milliseconds(0)));
  }

 private:
  [[nodiscard]] bool is_host() const { return options_.rank == Rank{0}; }

  /// False where no rank is, or it takes no more now.
  bool post(Rank to, std::span<const std::byte> note) {
    const sockaddr_un name = name_of(is_host() ? file_of_rank(options_, to, "notes") : place_);
    const ssize_t sent = ::sendto(socket_.number(),
                                  note.data(),
                                  note.size(),
                                  MSG_DONTWAIT | MSG_NOSIGNAL,
                                  reinterpret_cast<const sockaddr*>(&name),
                                  sizeof name);
    if (sent < 0 && errno == EMSGSIZE)
      refuse("send a note of " + std::to_string(note.size()) + " bytes");
    return sent >= 0;
  }

  std::optional<RendezvousMessage> take(std::chrono::milliseconds longest) {
    pollfd item{socket_.number(), POLLIN, 0};
    if (::poll(&item, 1, static_cast<int>(longest.count())) <= 0) return std::nullopt;
    sockaddr_un name{};
    socklen_t name_bytes = sizeof name;
    const ssize_t got = ::recvfrom(socket_.number(),
                                   room_.data(),
                                   room_.size(),
                                   MSG_DONTWAIT | MSG_TRUNC,
                                   reinterpret_cast<sockaddr*>(&name),
                                   &name_bytes);
    const auto bytes = static_cast<std::size_t>(std::max<ssize_t>(got, 0));
    if (bytes < kHeaderBytes || bytes > room_.size()) return std::nullopt;
    name.sun_path[sizeof name.sun_path - 1] = 0;
    const std::string from = name_bytes > sizeof name.sun_family ? name.sun_path : "";
    const int rank = from == place_ ? 0 : rank_of_file(from);
    if (rank < 0) return std::nullopt;
    const auto text = room_.begin() + static_cast<std::ptrdiff_t>(kHeaderBytes);
    return RendezvousMessage{
        Rank{rank},
        {room_.begin(), text},
        {reinterpret_cast<const char*>(room_.data()) + kHeaderBytes, bytes - kHeaderBytes}};
  }

  SharedMemoryOptions options_;
  std::string place_;
  std::string path_;
  Descriptor socket_;
  std::vector<std::byte> room_;
  std::vector<std::byte> unsent_;  // to a rank 0 that was not there yet
};

}  // namespace

std::unique_ptr<RendezvousChannel> make_rendezvous_channel(const std::string& url,
                                                           std::size_t longest_note,
                                                           const SharedMemoryOptions& options) {
  return std::make_unique<SharedMemoryChannel>(url, longest_note, options);
}

}  // namespace millrace::shared_memory
