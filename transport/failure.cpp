// Exit codes by the kind of an exception.
#include "millrace/transport/endpoint.hpp"

namespace millrace {

int exit_code_of(const std::exception& error) {
  if (dynamic_cast<const InvalidArgument*>(&error) != nullptr) return exit_code::kUsage;
  if (dynamic_cast<const DataError*>(&error) != nullptr) return exit_code::kCorruptData;
  if (dynamic_cast<const Mismatch*>(&error) != nullptr) return exit_code::kMismatch;
  if (dynamic_cast<const PeerHangs*>(&error) != nullptr) return exit_code::kHang;
  if (dynamic_cast<const PeerLost*>(&error) != nullptr) return exit_code::kLostPeer;
  if (dynamic_cast<const Cancelled*>(&error) != nullptr) return exit_code::kLostPeer;
  try {
    std::rethrow_if_nested(error);
  } catch (const std::exception& cause) {
    // What a pass was given wrongly is not the fault of the command line.
    const int code = exit_code_of(cause);
    return code == exit_code::kUsage ? exit_code::kFailed : code;
  }
  return exit_code::kFailed;
}

}  // namespace millrace
