// The endpoint that a listener opens.
#pragma once

#include <memory>

#include "transport/in_process/hub.hpp"

namespace millrace::in_process {

std::unique_ptr<Endpoint> make_endpoint(std::shared_ptr<Hub> hub, Rank rank);

}  // namespace millrace::in_process
