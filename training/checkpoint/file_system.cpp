// The file system as POSIX has it.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "millrace/training/checkpoint.hpp"

namespace millrace {
namespace {

StorageError refusal(const std::string& path, const char* what, int reason) {
  return StorageError(path + ": " + what + ": " + std::generic_category().message(reason));
}

void require_done(int answer, const std::string& path, const char* what) {
  if (answer != 0) throw refusal(path, what, errno);
}

/// Closed at the end of a scope.
class Descriptor {
 public:
  Descriptor(const std::string& path, int flags, const char* what)
      : number_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {
    if (number_ < 0) throw refusal(path, what, errno);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }

  [[nodiscard]] int number() const { return number_; }
  /// Leaves it open.
  int keep() { return std::exchange(number_, -1); }

 private:
  int number_;
};

/// Of a whole file; some file systems have no locks.
enum class Locked : std::uint8_t { Yes, No, Unknown };

Locked lock_of(int file, const std::string& path) {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  if (::fcntl(file, F_OFD_SETLK, &whole) == 0) return Locked::Yes;
  switch (errno) {
    case EAGAIN:
    case EACCES:
      return Locked::No;
    case ENOLCK:
    case ENOSYS:
    case EOPNOTSUPP:
    case EINVAL:
      return Locked::Unknown;
    default:
      throw refusal(path, "cannot be locked", errno);
  }
}

/// False when a job that held the lock has removed the file since it was opened here.
bool is_at(int file, const std::string& path) {
  struct stat here {
  }, there{};
  return ::fstat(file, &here) == 0 && ::stat(path.c_str(), &there) == 0 &&
         here.st_ino == there.st_ino && here.st_dev == there.st_dev;
}

void require_regular(int file, const std::string& path) {
  struct stat status {};
  require_done(::fstat(file, &status), path, "cannot be read");
  if (!S_ISREG(status.st_mode)) throw StorageError(path + ": is not a regular file");
}

}  // namespace

OpenFile FileSystem::create(const std::string& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0) throw refusal(path, "cannot be created", errno);
  return {file, path};
}

void FileSystem::reserve(const OpenFile& file, std::uint64_t bytes) {
  if (bytes == 0) return;
  const int reason = ::posix_fallocate(file.descriptor, 0, static_cast<off_t>(bytes));
  if (reason != 0) throw refusal(file.path, "there is no room for it", reason);
}

std::size_t FileSystem::write(const OpenFile& file, std::span<const std::byte> bytes) {
  ssize_t count = -1;
  do count = ::write(file.descriptor, bytes.data(), bytes.size());
  while (count < 0 && errno == EINTR);
  if (count <= 0) throw refusal(file.path, "cannot be written", count == 0 ? EIO : errno);
  return static_cast<std::size_t>(count);
}

void FileSystem::sync(const OpenFile& file) {
  require_done(::fsync(file.descriptor), file.path, "cannot be made durable");
}

void FileSystem::close(const OpenFile& file) {
  require_done(::close(file.descriptor), file.path, "cannot be closed");
}

void FileSystem::make_folder(const std::string& path) {
  std::error_code problem;
  std::filesystem::create_directories(path, problem);
  if (problem) throw refusal(path, "the folder cannot be made", problem.value());
}

void FileSystem::sync_folder(const std::string& path) {
  const Descriptor folder(path, O_RDONLY | O_DIRECTORY, "the folder cannot be opened");
  require_done(::fsync(folder.number()), path, "the folder cannot be made durable");
}

void FileSystem::rename(const std::string& from, const std::string& to) {
  require_done(std::rename(from.c_str(), to.c_str()), to, "cannot get its name");
}

void FileSystem::remove(const std::string& path) {
  require_done(std::remove(path.c_str()), path, "cannot be removed");
}

std::optional<OpenFile> FileSystem::lock(const std::string& path, const std::string& text) {
  while (true) {
    Descriptor file(path, O_RDWR | O_CREAT | O_NONBLOCK, "cannot be created");
    require_regular(file.number(), path);
    if (lock_of(file.number(), path) == Locked::No) return std::nullopt;
    if (!is_at(file.number(), path)) continue;
    require_done(::ftruncate(file.number(), 0), path, "cannot be written");
    const auto bytes = std::as_bytes(std::span(text));
    for (std::size_t done = 0; done < bytes.size();)
      done += FileSystem::write({file.number(), path}, bytes.subspan(done));
    return OpenFile{file.keep(), path};
  }
}

void FileSystem::unlock(const OpenFile& file) {
  ::unlink(file.path.c_str());
  ::close(file.descriptor);
}

std::vector<std::string> FileSystem::list(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code problem;
  std::filesystem::directory_iterator entries(folder, problem);
  if (problem == std::errc::no_such_file_or_directory) return names;
  for (; !problem && entries != std::filesystem::directory_iterator(); entries.increment(problem))
    names.push_back(entries->path().filename().string());
  if (problem) throw refusal(folder, "the folder cannot be read", problem.value());
  std::ranges::sort(names);
  return names;
}

bool FileSystem::exists(const std::string& path) {
  std::error_code problem;
  return std::filesystem::exists(path, problem);
}

Tensor FileSystem::read(const std::string& path, std::uint64_t most) {
  // Without O_NONBLOCK the open of a FIFO waits for a writer.
  const Descriptor file(path, O_RDONLY | O_NONBLOCK, "cannot be opened");
  require_regular(file.number(), path);
  struct stat status {};
  require_done(::fstat(file.number(), &status), path, "cannot be read");
  if (static_cast<std::uint64_t>(status.st_size) > most)
    throw StorageError(path + ": has " + std::to_string(status.st_size) + " bytes; at most " +
                       std::to_string(most) + " were expected");
  Tensor contents = Tensor::uninitialised(DType::U8, {status.st_size});
  std::span<std::uint8_t> rest = contents.as<std::uint8_t>();
  while (!rest.empty()) {
    const ssize_t count = ::read(file.number(), rest.data(), rest.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw refusal(path, "cannot be read", errno);
    if (count == 0) throw StorageError(path + ": became shorter while it was read");
    rest = rest.subspan(static_cast<std::size_t>(count));
  }
  return contents;
}

}  // namespace millrace
