// What ranks in processes of their own can be connected by: backends.cpp has a line for each.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/ranks/link_flags.hpp"
#include "millrace/core/channel.hpp"
#include "millrace/transport/listener.hpp"

namespace millrace::cli {

/// Who a rank is and whom it meets where, whatever it is connected by.
struct RankPlace {
  Membership member;
  std::string rendezvous;
  std::string keys;  ///< a file or folder of keys; empty: none
  std::vector<ChannelDepth> depths;
};

struct Backend {
  std::string_view name;  ///< as --endpoint takes it
  /// Throws InvalidArgument where flags and place do not fit together.
  std::unique_ptr<Listener> (*listener)(const LinkFlags& flags, const RankPlace& place);
};

/// The one that --endpoint names. Throws InvalidArgument with all names for any other.
[[nodiscard]] const Backend& backend_of(const LinkFlags& flags);

}  // namespace millrace::cli
