// See backends.hpp. A new backend has a line in kBackends.
#include "cli/ranks/backends.hpp"

#include <algorithm>
#include <array>

#include "cli/ranks/zeromq.hpp"
#include "millrace/core/error.hpp"

namespace millrace::cli {

namespace {

constexpr std::array kBackends = {
    Backend{"ipc", &zeromq_listener},
    Backend{"tcp", &zeromq_listener},
};

}  // namespace

const Backend& backend_of(const LinkFlags& flags) {
  const auto found = std::ranges::find(kBackends, flags.link, &Backend::name);
  if (found != kBackends.end()) return *found;
  std::string known;
  for (const Backend& backend : kBackends)
    known += (known.empty() ? "" : ", ") + std::string(backend.name);
  throw InvalidArgument("--endpoint " + flags.link + ": known are " + known);
}

}  // namespace millrace::cli
