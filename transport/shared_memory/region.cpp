#include "transport/shared_memory/region.hpp"

#include <cerrno>
#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/transport/shared_memory.hpp"

namespace millrace::shared_memory {

namespace {

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

int anonymous_file() {
  return ::memfd_create("millrace", MFD_CLOEXEC | MFD_ALLOW_SEALING);
}

void* map(int file, std::size_t bytes, int protection) {
  void* data = ::mmap(nullptr, bytes, protection, MAP_SHARED, file, 0);
  if (data == MAP_FAILED) refuse("map " + std::to_string(bytes) + " bytes of shared memory");
  return data;
}

}  // namespace

Descriptor::Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(number_, other.number_);
  return *this;
}

Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

void refuse(const std::string& what) {
  throw TransportError("cannot " + what + ": " + std::generic_category().message(errno));
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

Region make_region(std::size_t bytes, Sharing sharing) {
  Region region{Descriptor(anonymous_file()), {}};
  const int file = region.file.number();
  const std::string what = "make " + std::to_string(bytes) + " bytes of shared memory";
  if (file < 0) refuse(what);
  // Reserved now: memory that is not there would show itself as a signal at the first write.
  errno = ::posix_fallocate(file, 0, static_cast<off_t>(bytes));
  if (errno != 0) refuse(what);
  region.memory = Mapping(map(file, bytes, PROT_READ | PROT_WRITE), bytes);
  if (::fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) refuse(what);
  // Systems before 5.1 do not know it, and leave it to the reader.
  if (sharing == Sharing::Read) ::fcntl(file, F_ADD_SEALS, F_SEAL_FUTURE_WRITE);
  return region;
}

Mapping map_region(const Descriptor& file, std::uint64_t bytes, Sharing sharing) {
  struct stat facts {};
  if (::fstat(file.number(), &facts) != 0) refuse("look at shared memory");
  const int seals = ::fcntl(file.number(), F_GET_SEALS);
  if (bytes == 0 || !S_ISREG(facts.st_mode) || static_cast<std::uint64_t>(facts.st_size) != bytes ||
      seals < 0 || (seals & F_SEAL_SHRINK) == 0)
    throw TransportError("what was given as shared memory of " + std::to_string(bytes) +
                         " bytes is none");
  const int protection = sharing == Sharing::Read ? PROT_READ : PROT_READ | PROT_WRITE;
  return {map(file.number(), bytes, protection), static_cast<std::size_t>(bytes)};
}

}  // namespace millrace::shared_memory

namespace millrace {

std::optional<std::string> shared_memory_problem() {
  using shared_memory::Descriptor;
  const auto why = [] { return ": " + std::generic_category().message(errno); };
  if (!Descriptor(shared_memory::anonymous_file())) return "the system has no memory files" + why();
  const auto self = static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0));
  if (!Descriptor(self)) return "the operating system does not signal the end of a process" + why();
  ::rlimit length{};
  if (::getrlimit(RLIMIT_FSIZE, &length) == 0 && length.rlim_cur != RLIM_INFINITY)
    return "the length of files is limited, and with it that of memory files";
  return std::nullopt;
}

}  // namespace millrace
