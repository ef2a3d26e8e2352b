#include "transport/zeromq/folder_rendezvous.hpp"

#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <sys/stat.h>
#include <system_error>
#include <thread>
#include <unistd.h>

#include "millrace/transport/endpoint.hpp"
#include "millrace/transport/zeromq.hpp"
#include "transport/zeromq/address.hpp"

namespace millrace::zeromq {

namespace {

using namespace std::chrono_literals;

constexpr auto kLook = 50ms;  // also on file systems between machines
constexpr int kPortsTried = 100;

std::string meeting_file(const std::string& folder) {
  return folder + "/meeting";
}

/// Complete from the moment at which it has its name.
void leave_address(const std::string& folder, const std::string& url) {
  const std::string aside = meeting_file(folder) + ".new";
  {
    std::ofstream file(aside);
    file << url << std::flush;
    if (!file) throw TransportError("cannot write " + aside);
  }
  std::filesystem::rename(aside, meeting_file(folder));
}

/// The node's own, where its name is one of this machine; else this machine's.
std::string address_of_first(const MeetingPlace& wish) {
  if (const std::string number = resolve_ipv4(wish.host); is_own_address(number)) return number;
  std::string name(256, '\0');
  if (::gethostname(name.data(), name.size() - 1) == 0)
    if (const std::string number = resolve_ipv4(name.c_str()); is_own_address(number))
      return number;
  throw TransportError("rank 0 finds no address of its own: neither the first node, " + wish.host +
                       ", nor this machine's name is one");
}

}  // namespace

FolderRendezvous::FolderRendezvous(const LaunchConfig& asked) : place_(asked) {
  if (place_.shared.empty() || place_.member.world == 1) return;
  if (place_.member.rank == Rank{0})
    make();
  else
    await();
  place_.keys = place_.shared;
}

FolderRendezvous::~FolderRendezvous() {
  std::error_code ignored;
  if (made_) std::filesystem::remove_all(place_.shared, ignored);
}

void FolderRendezvous::make() {
  const MeetingPlace wish = meeting_place(place_.rendezvous);
  const std::string host = address_of_first(wish);
  int port = wish.port;
  while (!is_free(host, port))
    if (++port == wish.port + kPortsTried)
      throw TransportError("rank 0 cannot listen at " + host + ": none of " +
                           std::to_string(kPortsTried) + " ports from " +
                           std::to_string(wish.port) + " on is free");
  // What lies there was left by a run of the same number that was killed.
  std::error_code ignored;
  std::filesystem::remove_all(place_.shared, ignored);
  if (::mkdir(place_.shared.c_str(), 0700) != 0)
    throw TransportError(
        "rank 0 cannot make " + place_.shared +
        ", where the ranks find their keys: " + std::generic_category().message(errno));
  made_ = true;
  static_cast<void>(write_key_files(place_.shared, place_.member.world));
  place_.rendezvous = "tcp://" + host + ":" + std::to_string(port);
  leave_address(place_.shared, place_.rendezvous);
}

void FolderRendezvous::await() {
  const auto end = std::chrono::steady_clock::now() + place_.join_timeout;
  for (;;) {
    std::ifstream file(meeting_file(place_.shared));
    if (std::getline(file, place_.rendezvous)) return;
    if (std::chrono::steady_clock::now() > end)
      throw PeerHangs("rank 0 has left no keys and address in " + place_.shared +
                      "; is that folder the same on all nodes?");
    std::this_thread::sleep_for(kLook);
  }
}

}  // namespace millrace::zeromq
