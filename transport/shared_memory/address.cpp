#include "transport/shared_memory/address.hpp"

#include <charconv>
#include <string_view>

#include "millrace/core/error.hpp"

namespace millrace::shared_memory {

namespace {

constexpr std::string_view kOfMemory = "shm:";
constexpr std::string_view kOfMeeting = "ipc://";
constexpr int kMostRanks = 1 << 16;

}  // namespace

PeerAddress peer_address(const std::string& socket) {
  require(socket.find('\n') == std::string::npos,
          "the path " + socket + " has a line break in it, which an address cannot");
  return {std::string(kOfMemory) + socket};
}

std::string socket_path(const PeerAddress& address) {
  if (!address.text.starts_with(kOfMemory))
    throw TransportError("'" + address.text + "' is no address of a shared-memory endpoint");
  return address.text.substr(kOfMemory.size());
}

std::string meeting_path(const std::string& url) {
  require(url.starts_with(kOfMeeting) && url.size() > kOfMeeting.size(),
          "'" + url + "' is no place where ranks that share memory meet: ipc://path");
  return url.substr(kOfMeeting.size());
}

std::string file_of_rank(const SharedMemoryOptions& options, Rank rank, const char* what) {
  return options.directory + "/r" + std::to_string(rank.value) + "." +
         std::to_string(options.epoch) + "." + what;
}

int rank_of_file(const std::string& path) {
  const std::size_t begin = path.rfind("/r");
  if (begin == std::string::npos) return -1;
  int rank = -1;
  const char* end = path.data() + path.size();
  const auto read = std::from_chars(path.data() + begin + 2, end, rank);
  const bool good = read.ec == std::errc() && read.ptr != end && *read.ptr == '.';
  return good && rank >= 0 && rank < kMostRanks ? rank : -1;
}

}  // namespace millrace::shared_memory
