#include "transport/wire/request.hpp"

#include <span>
#include <string>

#include "transport/wire/frame.hpp"

namespace millrace {

void check_peer(Rank self, int world, Rank peer) {
  require(peer.value >= 0 && peer.value < world && peer != self, [&] {
    return "rank " + std::to_string(peer.value) + " is not another rank of a world of " +
           std::to_string(world);
  });
}

void check_member(const Membership& member) {
  require(member.world >= 1, "world is " + std::to_string(member.world) + ", but at least 1");
  require(member.rank.value >= 0 && member.rank.value < member.world,
          "rank " + std::to_string(member.rank.value) + " is outside a world of " +
              std::to_string(member.world));
}

void check_message(Rank to,
                   const MessageTag& tag,
                   const TensorList& payload,
                   std::uint64_t largest_payload) {
  DataHeader header;
  header.tag = tag;
  header.destination = to;
  header.tensor_count = static_cast<int>(payload.size());
  static_cast<void>(encode(header));
  for (std::size_t i = 0; i < payload.size(); ++i)
    require(payload[i].bytes() <= largest_payload, [&] {
      return "a tensor of " + std::to_string(payload[i].bytes()) +
             " bytes is above the agreed largest payload of " + std::to_string(largest_payload);
    });
}

std::vector<std::uint64_t> hashes_of(const TensorList& payload) {
  std::vector<std::uint64_t> hashes;
  for (std::size_t i = 0; i < payload.size(); ++i)
    hashes.push_back(
        payload_hash({static_cast<const std::byte*>(payload[i].data()), payload[i].bytes()}));
  return hashes;
}

void refuse_late_message(Rank self, Rank from, const MessageTag& tag) {
  throw TransportError("deadline passed: rank " + std::to_string(self.value) + " waits for the " +
                       to_string(tag) + " from rank " + std::to_string(from.value));
}

void refuse_late_goodbye(Rank self) {
  throw TransportError("deadline passed: rank " + std::to_string(self.value) +
                       " could not say goodbye to all ranks");
}

}  // namespace millrace
