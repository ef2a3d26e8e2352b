// What every backend rejects before it sends anything.
#include "transport/link/endpoint.hpp"

#include <filesystem>
#include <fmt/format.h>
#include <iterator>
#include <sys/resource.h>
#include <system_error>

#include "millrace/core/error.hpp"
#include "transport/wire/frame.hpp"

namespace millrace {

void check_member(const Membership& member) {
  require(member.world >= 1, fmt::format("world is {}, but at least 1", member.world));
  require(member.rank.value >= 0 && member.rank.value < member.world,
          fmt::format("rank {} is outside a world of {}", member.rank.value, member.world));
}

void check_addresses(const std::vector<PeerAddress>& addresses, int world) {
  require(addresses.size() == static_cast<std::size_t>(world), [&] {
    return fmt::format("there are {} addresses for {} ranks", addresses.size(), world);
  });
}

void check_descriptors(int world, std::size_t needed) {
  std::error_code unknown;
  const std::filesystem::directory_iterator open("/proc/self/fd", unknown);
  rlimit limit{};
  if (unknown || world == 1 || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  needed += static_cast<std::size_t>(std::distance(begin(open), end(open)));
  if (needed > limit.rlim_cur)
    throw TransportError(
        fmt::format("a rank of {} needs {} descriptors, but this process may open only {}",
                    world,
                    needed,
                    limit.rlim_cur));
}

void check_peer(const Membership& member, Rank peer) {
  require(peer.value >= 0 && peer.value < member.world && peer != member.rank, [&] {
    return fmt::format("rank {} is not another rank of a world of {}", peer.value, member.world);
  });
}

void check_message(const LinkOptions& options, const MessageTag& tag, const TensorList& payload) {
  check_fields(tag, payload.size());
  for (std::size_t i = 0; i < payload.size(); ++i) {
    require(!payload[i].is_reference(), "a reference cannot leave its process");
    require(payload[i].bytes() <= options.largest_payload, [&] {
      return fmt::format("a tensor of {} bytes is above the agreed largest payload of {}",
                         payload[i].bytes(),
                         options.largest_payload);
    });
  }
}

std::vector<std::uint64_t> hashes_of(const LinkOptions& options, const TensorList& payload) {
  std::vector<std::uint64_t> hashes;
  for (std::size_t i = 0; options.hash_payloads && i < payload.size(); ++i)
    hashes.push_back(
        payload_hash({static_cast<const std::byte*>(payload[i].data()), payload[i].bytes()}));
  return hashes;
}

std::string refused_frame(Rank self, Rank from, Refusal refusal) {
  return fmt::format(
      "rank {} refuses a frame of rank {}: {}", self.value, from.value, name_of(refusal));
}

std::string surplus_message(Rank self, Rank from, const MessageTag& tag) {
  return fmt::format("rank {} sent the {} twice, or more than the channel to rank {} holds",
                     from.value,
                     to_string(tag),
                     self.value);
}

std::string broken_link(Rank self, const std::exception& error) {
  return fmt::format("the transport of rank {} failed: {}", self.value, error.what());
}

void refuse_late_message(Rank self, Rank from, const MessageTag& tag) {
  throw TransportError(fmt::format("deadline passed: rank {} waits for the {} from rank {}",
                                   self.value,
                                   to_string(tag),
                                   from.value));
}

void refuse_late_shutdown(Rank self) {
  throw TransportError(
      fmt::format("deadline passed: rank {} could not leave all ranks", self.value));
}

}  // namespace millrace
