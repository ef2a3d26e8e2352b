// Meeting the other ranks.
#include "module/launched.hpp"

namespace millrace::python {

JoinedRank joined(const HelloFields& fields, std::chrono::milliseconds least) {
  LaunchConfig config = own_launch_config();
  if (!config.action_timeout && least.count() > 0) config.action_timeout = least;
  return join_launch_at(config, {.fields = fields});
}

}  // namespace millrace::python
