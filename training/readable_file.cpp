#include "training/readable_file.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "millrace/core/error.hpp"

namespace millrace {
namespace {

std::string last_error() {
  return std::generic_category().message(errno);
}

/// Not waiting for the other end of what turns out to be a pipe.
int opened(const std::string& name) {
  const int file = ::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) throw InvalidArgument(name + ": cannot be opened: " + last_error());
  return file;
}

}  // namespace

ReadableFile::ReadableFile(std::string name) : name_(std::move(name)), file_(opened(name_)) {
  struct stat facts {};
  if (::fstat(file_, &facts) == 0 && S_ISREG(facts.st_mode)) {
    size_ = facts.st_size;
    return;
  }
  ::close(file_);
  throw InvalidArgument(name_ + ": expected a file of text, found something else");
}

ReadableFile::~ReadableFile() {
  ::close(file_);
}

void ReadableFile::read(std::int64_t first, std::span<std::uint8_t> to) const {
  while (!to.empty()) {
    const ssize_t count = ::pread(file_, to.data(), to.size(), first);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw DataError(name_ + ": cannot be read: " + last_error());
    if (count == 0)
      throw DataError(name_ + ": ends at byte " + std::to_string(first) + ", but had " +
                      std::to_string(size_) + " bytes when it was opened: it was cut short since");
    first += count;
    to = to.subspan(static_cast<std::size_t>(count));
  }
}

void read_pieces(const FileRange& range,
                 std::int64_t first,
                 std::int64_t count,
                 const std::function<void(std::span<const std::uint8_t>)>& use) {
  std::array<std::uint8_t, 1U << 14U> piece;  // NOLINT(cppcoreguidelines-pro-type-member-init)
  while (count > 0) {
    const std::int64_t size = std::min<std::int64_t>(count, piece.size());
    const auto part = std::span(piece).first(static_cast<std::size_t>(size));
    range.file->read(range.first + first, part);
    use(part);
    first += size;
    count -= size;
  }
}

}  // namespace millrace
