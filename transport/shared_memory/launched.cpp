#include "transport/shared_memory/launched.hpp"

#include "millrace/core/error.hpp"
#include "millrace/transport/shared_memory.hpp"

namespace millrace::shared_memory {

Launched launched(const LaunchConfig& config, const std::vector<ChannelDepth>& depths) {
  const std::string& url = config.rendezvous;
  const bool ipc = url.starts_with("ipc://");
  require(config.member.world == 1 || ipc,
          named("endpoint") + " shm: ranks of one machine meet at ipc://directory/name, but " +
              named("rendezvous") + " is " + url);
  auto options = link_options<SharedMemoryOptions>(config, depths);
  if (ipc) options.directory = url.substr(6, url.rfind('/') - 6);
  return {.listener = std::make_unique<SharedMemoryListener>(options), .url = url};
}

}  // namespace millrace::shared_memory
