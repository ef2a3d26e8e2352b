// Binding an ipc path replaces the file there, and any user of the directory may connect:
// so sockets live in a directory that is ours alone, and that is checked before every bind.
#include "millrace/transport/private_directory.hpp"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include "millrace/core/error.hpp"

namespace millrace {

PrivateDirectory::PrivateDirectory(const std::string& parent) : path_(parent + "/millrace-XXXXXX") {
  // mkdtemp makes 0700, never follows or reuses what exists, and draws the name.
  if (::mkdtemp(path_.data()) == nullptr)
    throw TransportError("cannot make a private directory in " + parent + ": " +
                         std::generic_category().message(errno));
  check(path_);
}

PrivateDirectory::~PrivateDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void PrivateDirectory::check(const std::string& path) {
  struct stat facts {};
  if (::lstat(path.c_str(), &facts) != 0)
    throw TransportError("cannot look at directory " + path + ": " +
                         std::generic_category().message(errno));
  if (!S_ISDIR(facts.st_mode)) throw TransportError(path + " is not a directory");
  if (facts.st_uid != ::geteuid()) throw TransportError(path + " belongs to another user");
  if ((facts.st_mode & 077U) != 0)
    throw TransportError("others may enter " + path + "; sockets need a directory of mode 0700");
}

}  // namespace millrace
