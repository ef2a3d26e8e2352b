#include "transport/in_process/address.hpp"

#include <charconv>
#include <string_view>

#include "millrace/core/error.hpp"

namespace millrace::in_process {

namespace {

constexpr std::string_view kScheme = "in-process:";

}  // namespace

PeerAddress peer_address(Rank rank) {
  return {std::string(kScheme) + std::to_string(rank.value)};
}

Rank rank_at(const PeerAddress& address) {
  Rank rank;
  const char* const end = address.text.data() + address.text.size();
  const bool ours = address.text.starts_with(kScheme);
  const auto read =
      std::from_chars(ours ? address.text.data() + kScheme.size() : end, end, rank.value);
  if (read.ec != std::errc() || read.ptr != end)
    throw TransportError("'" + address.text + "' is no address of an in-process endpoint");
  return rank;
}

}  // namespace millrace::in_process
