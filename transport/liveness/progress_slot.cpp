#include "transport/liveness/progress_slot.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <fcntl.h>
#include <limits>
#include <new>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include "millrace/core/error.hpp"
#include "transport/mailbox/rank_words.hpp"

namespace millrace {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostKinds = 256;
constexpr std::uint64_t kFirstEvaluation = std::uint64_t{1} << 63U;

constexpr off_t kHolderAt = 1024;  // after what the holder keeps in the file

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

/// Opens a file of this user alone and locks it until the descriptor is closed or the process ends:
/// the lock separates the living, who must not be disturbed, from the dead, whose place may be
/// taken. What a dead process left there is taken over, emptied; the first 1024 bytes are the
/// caller's. Throws TransportError while a living process holds it, naming both processes, when it
/// is not a file, and when it cannot be made.
int hold_file(const std::string& path) {
  for (;;) {
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    struct stat facts {};
    if (file < 0 || ::fstat(file, &facts) != 0)
      refuse(path, file, std::generic_category().message(errno));
    if (!S_ISREG(facts.st_mode)) refuse(path, file, "what lies there is not a file");
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

/// Removes the file and lets go of it, in this order: no process can take it over between.
void let_go(const std::string& path, int file) noexcept {
  ::unlink(path.c_str());
  ::close(file);
}

}  // namespace

ProgressSlot::ProgressSlot(std::string path) : path_(std::move(path)) {
  kinds_.reserve(kMostKinds);  // before what only the destructor gives back
  if (path_.empty()) {
    page_ = new Page;
  } else {
    file_ = hold_file(path_);
    void* memory = MAP_FAILED;
    // Reserved now: a full disk must not show itself as a signal at the first write.
    errno = ::posix_fallocate(file_, 0, sizeof(Page));
    if (errno == 0)
      memory = ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (memory == MAP_FAILED) {
      const std::string why = std::generic_category().message(errno);
      let_go(path_, file_);
      throw TransportError("cannot make " + path_ + ": " + why);
    }
    page_ = new (memory) Page;
  }
  last_.since = Clock::now();
  begin(last_);
}

ProgressSlot::~ProgressSlot() {
  if (path_.empty()) {
    delete page_;
    return;
  }
  ::munmap(page_, sizeof(Page));
  let_go(path_, file_);
}

ProgressSlot::Kind& ProgressSlot::kind_of(const Activity& activity) {
  const bool evaluates = activity.tag.step >= kFirstEvaluation;
  for (Kind& kind : kinds_)
    if (kind.what == activity.what && kind.stage == activity.tag.stage &&
        kind.evaluates == evaluates)
      return kind;
  // Room was made once; kinds beyond it share the last place.
  if (kinds_.size() == kMostKinds) return kinds_.back();
  return kinds_.emplace_back(Kind{activity.what, activity.tag.stage, evaluates});
}

void ProgressSlot::begin(Activity activity) noexcept {
  activity.since = Clock::now();
  activity.count = last_.count + 1;
  if (activity.pipeline == 0) activity.pipeline = last_.pipeline;
  if (last_.doing == Doing::Works) kind_of(last_).took.add(activity.since - last_.since);
  if (activity.doing == Doing::Works) {
    const Kind& kind = kind_of(activity);
    activity.longest = kind.took.longest();
    activity.usual = kind.evaluates ? std::chrono::nanoseconds::zero() : kind.took.p99();
  }
  last_ = activity;

  const ActivityWords words = encode(activity);
  const std::uint64_t next = page_->published.load(std::memory_order_relaxed) + 1;
  // Pairs with the fence in now(): a reader that sees a word of this copy also sees that the other
  // one was published before.
  std::atomic_thread_fence(std::memory_order_release);
  for (std::size_t i = 0; i < words.size(); ++i)
    page_->copies[next % 2][i].store(words[i], std::memory_order_relaxed);
  page_->published.store(next, std::memory_order_release);
}

Activity ProgressSlot::now() const noexcept {
  for (;;) {
    // Pairs with the release in begin: the words of the published copy are seen. A number that is
    // still the same afterwards says that the writer had not come back to this copy.
    const std::uint64_t before = page_->published.load(std::memory_order_acquire);
    ActivityWords words{};
    for (std::size_t i = 0; i < words.size(); ++i)
      words[i] = page_->copies[before % 2][i].load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (page_->published.load(std::memory_order_relaxed) == before) return decode(words);
  }
}

std::optional<Activity> ProgressSlot::of(const std::string& path) noexcept {
  const int file = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  constexpr auto kWhole = static_cast<ssize_t>((1 + 2 * kActivityWords) * sizeof(std::uint64_t));
  static_assert(sizeof(Page) == kWhole);
  std::optional<Activity> found;
  // Read, not mapped: a file that is cut short must not end this process.
  for (int attempt = 0; attempt < 100 && !found; ++attempt) {
    std::array<std::uint64_t, 1 + 2 * kActivityWords> bytes{};
    std::uint64_t after = 0;
    if (::pread(file, bytes.data(), kWhole, 0) != kWhole ||
        ::pread(file, &after, sizeof after, 0) != static_cast<ssize_t>(sizeof after))
      break;
    if (bytes[0] != after || after == 0) continue;
    ActivityWords words{};
    const auto copy = bytes.begin() + 1 + static_cast<std::ptrdiff_t>((after % 2) * kActivityWords);
    std::copy(copy, copy + static_cast<std::ptrdiff_t>(kActivityWords), words.begin());
    found = decode(words);
  }
  ::close(file);
  return found;
}

namespace {

constexpr unsigned kFirstOctave = 10;  // 2^10 ns
constexpr unsigned kBinBits = 3;       // of a number after its first bit
constexpr std::uint32_t kEnough = 100;

}  // namespace

void Durations::add(std::chrono::nanoseconds took) noexcept {
  longest_ = std::max(longest_, took);
  if (count_ == std::numeric_limits<std::uint32_t>::max()) return;
  const auto number = std::max(static_cast<std::uint64_t>(std::max<std::int64_t>(took.count(), 0)),
                               std::uint64_t{1} << kFirstOctave);
  const auto octave = static_cast<unsigned>(std::bit_width(number)) - 1;
  const auto inside = (number >> (octave - kBinBits)) % kPerOctave;
  const std::size_t bin =
      std::min<std::size_t>(std::size_t{octave - kFirstOctave} * kPerOctave + inside, kBins - 1);
  ++bins_[bin];
  ++count_;
  if (bin > at_) ++above_;
  // The 99th percentile moves by few bins at a time.
  while (above_ > count_ / kEnough) above_ -= bins_[++at_];
  while (at_ > 0 && above_ + bins_[at_] <= count_ / kEnough) above_ += bins_[at_--];
}

std::chrono::nanoseconds Durations::p99() const noexcept {
  if (count_ < kEnough) return {};
  if (at_ + 1 == kBins) return longest_;
  const std::size_t octave = (at_ + 1) / kPerOctave + kFirstOctave;
  const std::uint64_t edge = (kPerOctave + (at_ + 1) % kPerOctave) << (octave - kBinBits);
  return std::min(longest_, std::chrono::nanoseconds(edge));
}

}  // namespace millrace
