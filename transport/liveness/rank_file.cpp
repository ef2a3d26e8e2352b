#include "transport/liveness/rank_file.hpp"

#include <array>
#include <cerrno>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include "millrace/core/error.hpp"
#include "transport/mailbox/rank_words.hpp"

namespace millrace {

namespace {

constexpr off_t kHolderAt = 1024;  // behind what the holder keeps in the file

void note_holder(int file) {
  const std::string holder = words_of_this_process();
  static_cast<void>(::pwrite(file, holder.data(), holder.size(), kHolderAt));
}

std::string holder_of(int file) {
  std::array<char, 320> text{};
  static_cast<void>(::pread(file, text.data(), text.size() - 1, kHolderAt));
  return text.front() == 0 ? "another process" : text.data();
}

[[noreturn]] void refuse(const std::string& path, int file, const std::string& why) {
  if (file >= 0) ::close(file);
  throw TransportError("cannot make " + path + ": " + why);
}

/// Its last holder may have removed it between our opening and our locking.
bool is_still_there(const std::string& path, const struct stat& held) {
  struct stat named {};
  return ::lstat(path.c_str(), &named) == 0 && named.st_ino == held.st_ino &&
         named.st_dev == held.st_dev;
}

}  // namespace

int hold_file(const std::string& path) {
  for (;;) {
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    struct stat facts {};
    if (file < 0 || ::fstat(file, &facts) != 0)
      refuse(path, file, std::generic_category().message(errno));
    if (!S_ISREG(facts.st_mode)) refuse(path, file, "something that is no file lies there");
    if (::flock(file, LOCK_EX | LOCK_NB) != 0)
      refuse(path,
             file,
             errno == EWOULDBLOCK ? "two processes have this rank: " + holder_of(file) + " and " +
                                        words_of_this_process()
                                  : std::generic_category().message(errno));
    if (is_still_there(path, facts)) {
      if (::ftruncate(file, 0) == 0) {
        note_holder(file);
        return file;
      }
      refuse(path, file, std::generic_category().message(errno));
    }
    ::close(file);
  }
}

void let_go(const std::string& path, int file) noexcept {
  ::unlink(path.c_str());
  ::close(file);
}

}  // namespace millrace
