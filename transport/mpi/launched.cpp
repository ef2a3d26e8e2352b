#include "transport/mpi/launched.hpp"

#include "millrace/transport/mpi.hpp"

namespace millrace::mpi {

/// Ranks built with different libraries could not even say so; versions of one library could.
Launched launched(const LaunchConfig& config, const std::vector<ChannelDepth>& depths) {
  auto options = link_options<MpiOptions>(config, depths);
  options.places = config.places;
  return {.listener = std::make_unique<MpiListener>(options),
          .url = "MPI",
          .fields = {{"MPI", mpi_library()}}};
}

}  // namespace millrace::mpi
