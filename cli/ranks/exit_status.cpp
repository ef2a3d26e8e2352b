#include "cli/ranks/exit_status.hpp"

#include <csignal>
#include <cstring>
#include <sys/wait.h>

#include "cli/exit_codes.hpp"

namespace millrace::cli {

int weight_of(int status) {
  if (WIFSIGNALED(status)) return 3;
  const int code = WEXITSTATUS(status);
  if (code == kDone) return 0;
  if (code == kLostPeer) return 1;  // somebody else was lost: look for who
  return code == kHang ? 2 : 3;
}

bool blames_another(int status) {
  return weight_of(status) == 1 || weight_of(status) == 2;
}

bool is_aborted(int status) {
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

int code_of(int status) {
  return WIFSIGNALED(status) ? kLostPeer : WEXITSTATUS(status);
}

std::string end_of(int status) {
  if (WIFSIGNALED(status))
    return std::string("was ended by signal ") + std::to_string(WTERMSIG(status)) + " (" +
           ::sigdescr_np(WTERMSIG(status)) + ")";
  return "ended with exit code " + std::to_string(WEXITSTATUS(status));
}

}  // namespace millrace::cli
