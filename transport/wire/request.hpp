// What a rank asks of its endpoint, held to what frames can carry before anything is sent, and the
// sentences for what did not come in time: the same for all backends between processes.
#pragma once

#include <cstdint>
#include <vector>

#include "millrace/core/tensor.hpp"
#include "millrace/transport/listener.hpp"

namespace millrace {

/// Throws InvalidArgument unless `peer` is another rank of the world than `self`.
void check_peer(Rank self, int world, Rank peer);

/// Throws InvalidArgument unless the rank is one of its world.
void check_member(const Membership& member);

/// Throws InvalidArgument for a tag, or a number of tensors, that a header has no room for, and for
/// a tensor of more bytes than agreed.
void check_message(Rank to,
                   const MessageTag& tag,
                   const TensorList& payload,
                   std::uint64_t largest_payload);

/// payload_hash of each tensor. Cost: some 50 us per MiB.
[[nodiscard]] std::vector<std::uint64_t> hashes_of(const TensorList& payload);

/// Throw TransportError: a message, or a goodbye, was waited for until the deadline.
[[noreturn]] void refuse_late_message(Rank self, Rank from, const MessageTag& tag);
[[noreturn]] void refuse_late_goodbye(Rank self);

}  // namespace millrace
