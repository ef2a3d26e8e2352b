// What a backend makes of a LaunchConfig: the same for all, so that one table lists them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "millrace/transport/launch.hpp"
#include "millrace/transport/listener.hpp"

namespace millrace {

/// A rank that listens, and how it meets the others.
struct Launched {
  std::shared_ptr<const void> until_met = {};  ///< kept until all have met
  std::unique_ptr<Listener> listener;
  std::string url;          ///< of the rendezvous
  HelloFields fields = {};  ///< compared there too
};

/// The options that all backends have.
template <class Options>
Options link_options(const LaunchConfig& config, const std::vector<ChannelDepth>& depths) {
  Options options;
  static_cast<Membership&>(options) = config.member;
  options.depths = depths;
  options.heartbeat_timeout = config.heartbeat_timeout;
  options.action_timeout = config.action_timeout;
  return options;
}

}  // namespace millrace
