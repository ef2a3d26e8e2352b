#include "transport/introduction_campaign.hpp"

#include <array>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <iterator>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

#include "millrace/core/random.hpp"
#include "millrace/transport/endpoint.hpp"
#include "millrace/transport/listener.hpp"
#include "millrace/transport/private_directory.hpp"
#include "transport/shared_memory/region_loop.hpp"

namespace millrace {

namespace {

using namespace shared_memory;
using Deed = std::span<const std::uint8_t>;

constexpr std::uint64_t kVisitedJob = 7;
constexpr std::size_t kGivenBytes = std::size_t{64} << 10U;
constexpr std::size_t kLentBytes = std::size_t{16} << 10U;  // used where they lie

Descriptor memory_file(std::size_t bytes, int seals) {
  Descriptor file(::memfd_create("unknown peer", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  static_cast<void>(::ftruncate(file.number(), static_cast<off_t>(bytes)));
  static_cast<void>(::fcntl(file.number(), F_ADD_SEALS, seals));
  return file;
}

/// One end of a pair whose other end is closed: who writes to it is ended by the system.
Descriptor broken(bool pipe) {
  std::array<int, 2> ends{-1, -1};
  static_cast<void>(pipe ? ::pipe2(ends.data(), O_CLOEXEC)
                         : ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()));
  const Descriptor closed(ends[0]);
  return Descriptor(ends[1]);
}

/// What can be given; the first four are what a rank gives.
std::vector<Descriptor> files_to_give() {
  std::vector<Descriptor> files;
  files.push_back(memory_file(sizeof(Board), F_SEAL_SHRINK));
  files.push_back(memory_file(sizeof(SendQueue), F_SEAL_SHRINK));
  files.emplace_back(::eventfd(0, EFD_CLOEXEC));
  files.push_back(memory_file(kGivenBytes, F_SEAL_SHRINK));
  files.push_back(memory_file(sizeof(Board), 0));
  files.push_back(memory_file(sizeof(SendQueue), 0));
  files.push_back(memory_file(kGivenBytes, F_SEAL_GROW));
  files.push_back(memory_file(kGivenBytes, F_SEAL_SHRINK | F_SEAL_WRITE));
  files.push_back(memory_file(0, F_SEAL_SHRINK | F_SEAL_GROW));
  files.push_back(broken(true));
  files.push_back(broken(false));
  files.emplace_back(::open("/dev/null", O_RDWR | O_CLOEXEC));
  files.emplace_back(::open("/", O_RDONLY | O_CLOEXEC));
  return files;
}

std::ptrdiff_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

MessageTag tag_of(std::uint64_t number) {
  MessageTag tag;
  tag.step = number;
  return tag;
}

/// Who says that it is rank 1 or 2 of three, and rank 0, who has to do with it.
class Visit {
 public:
  Visit() {
    for (const int rank : {1, 2}) homes_.push_back(listen_at(socket_of(rank), 64));
    board_ = map_region(files_[0], sizeof(Board), Sharing::Write);
    send_queue_ = map_region(files_[1], sizeof(SendQueue), Sharing::Write);
    writer_.emplace(reinterpret_cast<SendQueue*>(send_queue_.data())->ring);
    SharedMemoryOptions options;
    options.world = 3;
    options.directory = directory_.path();
    options.job = kVisitedJob;
    options.heartbeat = std::chrono::hours(1);  // only the input takes a turn
    options.heartbeat_timeout = std::chrono::hours(1);
    loop_.emplace(options,
                  mailbox_,
                  slot_,
                  ListeningSocket(socket_of(0), 64),
                  std::vector{socket_of(0), socket_of(1), socket_of(2)});
  }

  void act(Deed words) {
    Descriptor& line = lines_[words[1] % lines_.size()];
    const std::size_t other = words[1] / lines_.size();
    switch (words[0] % 12) {
      case 0:
        line = connect_to(socket_of(0));
        return;
      case 1:
        return introduce(line, {0, 1, 2}, 0, 0);
      case 2:
        return introduce(line, {0, 1, 2}, words[2], words[3]);
      case 3:
        return introduce(line, {other % 2 * 4, words[2], other % 4 == 0 ? words[3] : 2U}, 0, 0);
      case 4:
        return give_segment(line, words[2] % 2 == 0 ? words[3] : 3U, words[1] / 4U);
      case 5:
        return say_nonsense(line, words[2] % 2 == 0 ? 0 : words[2], words[3]);
      case 6:
        return write_words(words[1] >= 128, words[1] * 256U + words[2], words[3]);
      case 7:
        return publish();
      case 8:
        for (const Descriptor& file : files_)
          if (words[2] % 2 == 0) static_cast<void>(::ftruncate(file.number(), 0));
        return;
      case 9:
        line = {};
        return;
      default:
        return take_turn();
    }
  }

  void take_turn() {
    try {
      for (const int rank : {1, 2}) {
        std::uint64_t& next = next_[Rank{rank}.index() - 1];
        loop_->send(Rank{rank}, tag_of(turns_), TensorList());
        loop_->learn_room(Rank{rank});
        static_cast<void>(loop_->wait(Deadline(), [&] {
          while (auto message = mailbox_.take(Rank{rank}, tag_of(next))) {
            ++next;
            ++result.arrived;
            kept_.push_back(std::move(*message));
          }
          return true;
        }));
        loop_->acknowledge_taken(Rank{rank}, Direction::Forward);
      }
      ++turns_;
    } catch (const TransportError& error) {
      result.ended = 1;
      if (std::strlen(error.what()) == 0) result.wrong = "an epoch ended without a message";
    }
  }

  /// What came lies in memory that is still there, and an honest rank gets in as ever.
  void conclude() {
    take_turn();
    for (const TensorList& message : kept_)
      for (std::size_t i = 0; i < message.size(); ++i)
        for (const std::uint8_t byte : message[i].as<std::uint8_t>())
          sum_ = sum_ + byte;  // volatile: a read that is made
    result.let_in = was_rung(files_[2]) ? 1 : 0;
    if (result.ended != 0 || claimed_two_) return;
    const std::vector<Descriptor> own = files_to_give();
    const Descriptor line = connect_to(socket_of(0));
    static_cast<void>(send_message(
        line.number(), introduction(2), {own[0].number(), own[1].number(), own[2].number()}));
    take_turn();
    if (!was_rung(own[2])) result.wrong = "strangers kept a rank from being let in";
  }

  IntroductionResult result;

 private:
  [[nodiscard]] std::string socket_of(int rank) const {
    return directory_.path() + "/r" + std::to_string(rank) + ".0.shm";
  }

  static DescriptorMessage introduction(std::int32_t rank) {
    return {DescriptorMessageKind::Introduction, 0, kVisitedJob, rank, 0, 0, 0, kProtocolVersion};
  }

  /// By the rank that accepted its owner.
  static bool was_rung(const Descriptor& bell) {
    static_cast<void>(::fcntl(bell.number(), F_SETFL, O_NONBLOCK));
    std::uint64_t count = 0;
    return ::read(bell.number(), &count, sizeof count) == sizeof count;
  }

  [[nodiscard]] int file(std::size_t number) const {
    return files_[number % files_.size()].number();
  }

  /// With one byte of the message changed, where `value` is not 0.
  void introduce(const Descriptor& line,
                 const std::array<std::size_t, 3>& which,
                 std::size_t where,
                 std::uint8_t value) {
    auto bytes =
        std::bit_cast<std::array<std::uint8_t, sizeof(DescriptorMessage)>>(introduction(1));
    bytes[where % bytes.size()] ^= value;
    const auto message = std::bit_cast<DescriptorMessage>(bytes);
    claimed_two_ = claimed_two_ || message.source == 2;
    if (line)
      static_cast<void>(
          send_message(line.number(), message, {file(which[0]), file(which[1]), file(which[2])}));
  }

  void give_segment(const Descriptor& line, std::size_t which, std::uint32_t wrong) {
    DescriptorMessage message{
        DescriptorMessageKind::Segment, 0, kVisitedJob, 1, 0, kGivenBytes, segments_, 0};
    if (wrong % 4 == 1) message.bytes <<= wrong / 4U;
    if (wrong % 4 == 2) message.number += wrong;
    if (line && send_message(line.number(), message, {file(which)})) ++segments_;
  }

  /// Some words, and with them some descriptors: maybe none of either.
  void say_nonsense(const Descriptor& line, std::size_t bytes, std::size_t count) {
    std::array<char, 255> text{};
    std::vector<int> given;
    for (std::size_t i = 0; i < count % 6; ++i) given.push_back(file(count / 6 + i));
    alignas(cmsghdr) std::array<char, CMSG_SPACE(6 * sizeof(int))> room{};
    iovec words{text.data(), bytes};
    msghdr message{};
    message.msg_iov = &words;
    message.msg_iovlen = 1;
    if (!given.empty()) {
      message.msg_control = room.data();
      message.msg_controllen = CMSG_SPACE(given.size() * sizeof(int));
      cmsghdr* part = CMSG_FIRSTHDR(&message);
      *part = {CMSG_LEN(given.size() * sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
      std::memcpy(CMSG_DATA(part), given.data(), given.size() * sizeof(int));
    }
    if (line) static_cast<void>(::sendmsg(line.number(), &message, MSG_DONTWAIT | MSG_NOSIGNAL));
  }

  void write_words(bool board, std::size_t where, std::uint8_t value) {
    const Mapping& memory = board ? board_ : send_queue_;
    std::memset(memory.data() + where % (memory.bytes() - 8), value, value % 9);
  }

  /// A frame as a rank writes them.
  void publish() {
    DataHeader header;
    header.job = kVisitedJob;
    header.source = Rank{1};
    header.sequence = published_;
    header.tag = tag_of(published_);
    header.tensor_count = 1;
    header.dims = {kLentBytes};
    header.payload_bytes = kLentBytes;
    const auto slot = static_cast<std::uint32_t>(published_++ % 4);
    if (published_ <= kRingEntries)
      writer_->put({encode(header), {slot * kLentBytes, kLentBytes, 0, slot, 1}});
  }

  PrivateDirectory directory_{std::filesystem::temp_directory_path()};
  std::vector<Descriptor> files_ = files_to_give();
  std::vector<Descriptor> homes_;  // where rank 0 introduces itself
  Mapping board_, send_queue_;
  std::optional<RingWriter> writer_;
  std::array<Descriptor, 4> lines_;
  bool claimed_two_ = false;
  std::uint32_t segments_ = 0;
  std::uint64_t published_ = 0;
  Mailbox mailbox_{Rank{0}, 3, {}};
  ProgressSlot slot_{""};
  std::optional<RegionLoop> loop_;
  std::array<std::uint64_t, 2> next_{};
  std::uint64_t turns_ = 0;
  std::vector<TensorList> kept_;
  volatile std::uint64_t sum_ = 0;
};

}  // namespace

IntroductionResult run_introduction_input(std::span<const std::uint8_t> input) {
  const std::ptrdiff_t before = open_descriptors();
  IntroductionResult result;
  {
    Visit visit;
    for (std::size_t at = 0; at + 4 <= input.size() && visit.result.ended == 0; at += 4)
      visit.act(input.subspan(at, 4));
    visit.conclude();
    result = visit.result;
  }
  if (open_descriptors() != before) result.wrong = "descriptors of a stranger were kept";
  return result;
}

IntroductionResult run_introduction_campaign(std::uint64_t seed, int inputs) {
  IntroductionResult all;
  std::array<std::uint8_t, 80> input{};
  for (int i = 0; i < inputs && all.wrong.empty(); ++i) {
    const RandomKey key{.seed = seed, .step = static_cast<std::uint32_t>(i)};
    for (std::size_t at = 0; at < input.size(); ++at)
      input[at] = static_cast<std::uint8_t>(random_below(key, static_cast<std::uint32_t>(at), 256));
    for (std::uint8_t line = 0; line < 4; ++line) {  // all come
      input[4U * line] = 0;
      input[4U * line + 1] = line;
    }
    const IntroductionResult one = run_introduction_input(input);
    all.let_in += one.let_in;
    all.arrived += one.arrived;
    all.ended += one.ended;
    all.wrong = one.wrong;
  }
  return all;
}

}  // namespace millrace
