// The endpoint that a listener opens.
#pragma once

#include <memory>

#include "millrace/transport/mpi.hpp"

namespace millrace::mpi {

[[nodiscard]] std::unique_ptr<Endpoint> make_endpoint(const MpiOptions& options);

}  // namespace millrace::mpi
