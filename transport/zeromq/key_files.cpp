// Files of keys: written private from their first moment, read into memory that is wiped.
#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <string_view>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include "millrace/core/error.hpp"
#include "millrace/transport/zeromq.hpp"
#include "transport/shared_memory/region.hpp"

namespace millrace {

namespace {

constexpr off_t kLargestFile = 1 << 20;  // six times that of the largest world

/// What an open file holds, overwritten when it has been read.
class SecretFile {
 public:
  explicit SecretFile(int number) {
    const shared_memory::Descriptor file(number);
    if (::fstat(number, &facts_) == 0 && S_ISREG(facts_.st_mode) && facts_.st_size < kLargestFile) {
      bytes_.resize(static_cast<std::size_t>(facts_.st_size));
      good_ = ::pread(number, bytes_.data(), bytes_.size(), 0) == facts_.st_size;
    }
  }
  SecretFile(const SecretFile&) = delete;
  SecretFile& operator=(const SecretFile&) = delete;
  ~SecretFile() { wipe(bytes_); }

  [[nodiscard]] bool good() const { return good_; }
  [[nodiscard]] bool of_the_owner_alone() const { return (facts_.st_mode & 077U) == 0; }

  /// The next word; empty at the end.
  std::string_view word() {
    const std::string_view rest = std::string_view(bytes_).substr(at_);
    const std::size_t first = std::min(rest.find_first_not_of(" \t\r\n"), rest.size());
    const std::size_t last = std::min(rest.find_first_of(" \t\r\n", first), rest.size());
    at_ += last;
    return rest.substr(first, last - first);
  }

 private:
  struct stat facts_ {};
  std::string bytes_;
  std::size_t at_ = 0;
  bool good_ = false;
};

/// Readable by this user alone from its first moment; never over what exists.
void write_private(const std::string& path, std::string_view text) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  int reason = file < 0 ? errno : 0;
  while (reason == 0 && !text.empty()) {  // a full disk takes a part first
    const ssize_t taken = ::write(file, text.data(), text.size());
    if (taken < 0 && errno != EINTR) reason = errno;
    text.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(taken, 0)));
  }
  if (file >= 0) ::close(file);
  if (file >= 0 && reason != 0) ::unlink(path.c_str());
  if (reason == 0) return;
  const std::string refusal =
      "the keys cannot be written to " + path + ": " + std::generic_category().message(reason);
  // Else the path is not the one to write to.
  if (reason == ENOSPC || reason == EDQUOT || reason == EFBIG || reason == EROFS || reason == EIO)
    throw Error(refusal);
  throw InvalidArgument(refusal);
}

/// Own public and secret key, then the public keys of all ranks.
SecretText file_of(const CurveKeys& own, const std::string& public_keys) {
  std::string text;
  text.reserve(2 * own.public_key.size() + public_keys.size() + 8);  // never moves
  for (const std::string* part : {&own.public_key, &own.secret_key.text(), &public_keys})
    text.append(*part).push_back('\n');  // no other text holds it for a moment
  SecretText secret(text);
  wipe(text);
  return secret;
}

/// `name` is the file's for messages.
CurveRing ring_of(SecretFile& file, const std::string& name) {
  const ParameterText keys_of = named("keys") + " " + name + ": ";
  require(file.good(), keys_of + "cannot be read");
  require(file.of_the_owner_alone(),
          keys_of + "others may read this secret; give it mode 0600 (chmod 600)");
  CurveRing ring;
  ring.own.public_key = file.word();
  ring.own.secret_key = SecretText(file.word());
  for (std::string key(file.word()); !key.empty(); key = file.word())
    ring.public_keys.push_back(key);
  if (!is_curve_key(ring.own.public_key) || !is_curve_key(ring.own.secret_key.text()) ||
      !std::all_of(ring.public_keys.begin(), ring.public_keys.end(), is_curve_key))
    throw DataError(name + ": not a file of keys (millrace keys makes them)");
  return ring;
}

CurveRing checked(CurveRing ring, const std::string& name, Rank rank, int world) {
  const ParameterText keys_of = named("keys") + " " + name + ": ";
  require(ring.public_keys.size() == static_cast<std::size_t>(world),
          keys_of + "made for " + std::to_string(ring.public_keys.size()) +
              " ranks, but there are " + std::to_string(world));
  const auto found =
      std::find(ring.public_keys.begin(), ring.public_keys.end(), ring.own.public_key);
  require(found != ring.public_keys.end(), keys_of + "its own key is not among those of all ranks");
  const auto owner = found - ring.public_keys.begin();
  require(owner == rank.value,
          keys_of + "these are the keys of rank " + std::to_string(owner) + ", but this is rank " +
              std::to_string(rank.value));
  return ring;
}

}  // namespace

std::vector<std::string> write_key_files(const std::string& directory, int ranks) {
  std::vector<CurveKeys> keys;
  std::string public_keys;
  for (int i = 0; i < ranks; ++i) {
    keys.push_back(make_curve_keys());
    public_keys += keys.back().public_key + "\n";
  }
  std::vector<std::string> paths;
  try {
    for (int i = 0; i < ranks; ++i) {
      const CurveKeys& own = keys[static_cast<std::size_t>(i)];
      const std::string path = directory + "/keys-" + std::to_string(i);
      write_private(path, file_of(own, public_keys).text());
      paths.push_back(path);
    }
  } catch (const Error&) {
    for (const std::string& path : paths) ::unlink(path.c_str());
    throw;
  }
  return paths;
}

CurveRing read_key_file(const std::string& path, Rank rank, int world) {
  const bool folder = std::filesystem::is_directory(path);
  const std::string name = folder ? path + "/keys-" + std::to_string(rank.value) : path;
  // A named pipe is refused, not waited for.
  SecretFile file(::open(name.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  return checked(ring_of(file, name), name, rank, world);
}

CurveRing read_keys(int descriptor, Rank rank, int world) {
  SecretFile file(descriptor);
  const std::string name = "by descriptor " + std::to_string(descriptor);
  return checked(ring_of(file, name), name, rank, world);
}

}  // namespace millrace
