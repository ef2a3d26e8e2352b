#include "cli/standard_streams.hpp"

#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

namespace millrace::cli {

namespace {

/// Waits until it can write, also if another process made the descriptor non-blocking.
ssize_t write_some(int descriptor, const char* bytes, std::size_t count) {
  for (;;) {
    const ssize_t written = ::write(descriptor, bytes, count);
    if (written >= 0 || (errno != EINTR && errno != EAGAIN)) return written;
    pollfd room{descriptor, POLLOUT, 0};
    if (errno == EAGAIN) ::poll(&room, 1, -1);
  }
}

bool has_room(int descriptor) {
  pollfd room{descriptor, POLLOUT, 0};
  return ::poll(&room, 1, 0) == 1;
}

/// A second way to the same pipe or terminal; everything else has room at any time.
int reopened(int descriptor, const struct stat& facts) {
  if (!S_ISFIFO(facts.st_mode) && ::isatty(descriptor) == 0) return -1;
  const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  return ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

}  // namespace

void occupy_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) != -1) continue;
    // The lowest free number is this one. Reading from it, or writing to it, fails as before.
    ::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

void take_failed_writes_as_errors() {
  for (const int signal : {SIGPIPE, SIGXFSZ}) ::signal(signal, SIG_IGN);
}

StandardOutput::StandardOutput() : before_(std::cout.rdbuf(this)) {
  setp(bytes_.data(), bytes_.data() + bytes_.size());
}

StandardOutput::~StandardOutput() {
  sync();
  std::cout.rdbuf(before_);
}

int StandardOutput::finish() {
  sync();
  return failure_;
}

StandardOutput::int_type StandardOutput::overflow(int_type letter) {
  if (sync() != 0) return traits_type::eof();
  if (!traits_type::eq_int_type(letter, traits_type::eof()))
    sputc(traits_type::to_char_type(letter));
  return traits_type::not_eof(letter);
}

int StandardOutput::sync() {
  const char* from = pbase();
  while (failure_ == 0 && from < pptr()) {
    const ssize_t written =
        write_some(STDOUT_FILENO, from, static_cast<std::size_t>(pptr() - from));
    if (written < 0)
      failure_ = errno;
    else
      from += written;
  }
  setp(bytes_.data(), bytes_.data() + bytes_.size());
  return failure_ == 0 ? 0 : -1;
}

UnwaitingWriter::UnwaitingWriter(int descriptor) : shared_(descriptor) {
  struct stat facts {};
  if (::fstat(descriptor, &facts) != 0) return;
  socket_ = S_ISSOCK(facts.st_mode);
  own_ = reopened(descriptor, facts);
}

UnwaitingWriter::~UnwaitingWriter() {
  if (own_ >= 0) ::close(own_);
}

std::size_t UnwaitingWriter::write(std::string_view bytes) {
  ssize_t written = 0;
  if (socket_)
    written = ::send(shared_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  else if (own_ >= 0)
    written = ::write(own_, bytes.data(), bytes.size());
  else if (has_room(shared_))
    written = ::write(shared_, bytes.data(), bytes.size());
  if (written >= 0) return static_cast<std::size_t>(written);
  return errno == EAGAIN || errno == EINTR ? 0 : bytes.size();
}

ProgressBuffer::int_type ProgressBuffer::overflow(int_type letter) {
  if (!traits_type::eq_int_type(letter, traits_type::eof()))
    line_ += traits_type::to_char_type(letter);
  return traits_type::not_eof(letter);
}

std::streamsize ProgressBuffer::xsputn(const char* letters, std::streamsize count) {
  line_.append(letters, static_cast<std::size_t>(count));
  return count;
}

int ProgressBuffer::sync() {
  if (!rest_.empty()) rest_.erase(0, writer_.write(rest_));
  if (rest_.empty()) {
    const std::size_t written = writer_.write(line_);
    if (written > 0) rest_ = line_.substr(written);
  }
  line_.clear();
  return 0;
}

}  // namespace millrace::cli
