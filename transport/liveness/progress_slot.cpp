#include "transport/liveness/progress_slot.hpp"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <new>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include "transport/liveness/rank_file.hpp"

namespace millrace {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostKinds = 256;
constexpr std::uint64_t kFirstEvaluation = std::uint64_t{1} << 63U;

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
  // Pairs with the fence in now(): whoever sees a word of this copy also sees that the other one
  // was published before.
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
  // Read, not mapped: a file that somebody cuts short must not end this process.
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

}  // namespace millrace
