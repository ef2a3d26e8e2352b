// See progress.hpp.
#include "transport/zeromq/progress.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <new>
#include <string_view>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include "transport/zeromq/rank_file.hpp"

namespace millrace::zeromq {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostKinds = 256;
constexpr std::uint64_t kLongest = std::uint64_t{1} << 55U;  // nanoseconds: a year
constexpr std::uint64_t kFirstEvaluation = std::uint64_t{1} << 63U;

std::string_view text_of(const std::array<char, 16>& what) {
  return {what.data(), ::strnlen(what.data(), what.size())};
}

/// "F of stage 2, micro-batch 3 of step 7", "STEP of step 7".
std::string place_of(std::string_view what, const MessageTag& tag, bool of_unit) {
  const std::string action = std::string(what) + " of ";
  if (!of_unit) return action + name_of_step(tag.step);
  MessageTag named = tag;
  named.direction = Direction::Forward;
  const std::string words = to_string(named);  // "activation for stage ..."
  return action + words.substr(words.find("stage "));
}

std::string number(Rank rank) {
  return "rank " + std::to_string(rank.value);
}

}  // namespace

std::string to_string(const Activity& activity) {
  switch (activity.doing) {
    case Doing::Starts:
      return "starts";
    case Doing::Works:
      return "is in " + place_of(text_of(activity.what), activity.tag, activity.of_unit);
    case Doing::Pauses:
      if (activity.peer.value < 0)
        return "is between the actions" + place_of({}, activity.tag, false);
      return std::string(activity.sent ? "has sent " : "works on ") + to_string(activity.tag) +
             (activity.sent ? " to " : " from ") + number(activity.peer);
    case Doing::Waits:
      return "waits for " + to_string(activity.tag) + " from " + number(activity.peer);
    case Doing::Departs:
      return "says goodbye";
    case Doing::Left:
      return "has said goodbye";
  }
  return "?";
}

std::string action_of(const Activity& activity) {
  if (activity.doing == Doing::Works)
    return place_of(text_of(activity.what), activity.tag, activity.of_unit);
  const bool message = activity.doing == Doing::Waits ||
                       (activity.doing == Doing::Pauses && activity.peer.value >= 0);
  if (!message) return "the next action";
  if (activity.tag.direction == Direction::Collective) return to_string(activity.tag);
  const bool forward = activity.tag.direction == Direction::Forward;
  // A message is named after the stage that receives it.
  MessageTag tag = activity.tag;
  if (activity.sent) tag.stage.value += forward ? -1 : 1;
  const char* what =
      activity.sent ? (forward ? "SEND_F" : "SEND_B") : (forward ? "RECV_F" : "RECV_B");
  return place_of(what, tag, true);
}

ActivityWords encode(const Activity& activity) {
  const auto wide = [](auto value) { return static_cast<std::uint64_t>(value); };
  const auto low = [](std::int32_t value) {
    return std::uint64_t{static_cast<std::uint32_t>(value)};
  };
  ActivityWords words{};
  words[0] = activity.count;
  words[1] = wide(activity.since.time_since_epoch().count());
  const bool usual = activity.usual.count() != 0;
  words[2] = wide((usual ? activity.usual : activity.longest).count());
  std::memcpy(&words[3], activity.what.data(), activity.what.size());
  words[5] = activity.tag.step;
  words[6] = wide(activity.doing) | wide(activity.tag.direction) << 8U |
             wide(activity.of_unit ? 1 : 0) << 16U | wide(activity.sent ? 1 : 0) << 17U |
             wide(usual ? 1 : 0) << 18U | low(activity.peer.value) << 32U;
  words[7] = low(activity.tag.stage.value) | low(activity.tag.micro_batch.value) << 32U;
  words[8] = low(activity.tag.slice.value) | low(activity.tag.replica.value) << 32U;
  return words;
}

Activity decode(const ActivityWords& words) {
  const auto part = [&](std::size_t word, unsigned shift) {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(words[word] >> shift));
  };
  Activity activity;
  activity.count = words[0];
  activity.since = Clock::time_point(std::chrono::nanoseconds(words[1]));
  const bool usual = ((words[6] >> 18U) & 1U) != 0;
  (usual ? activity.usual : activity.longest) =
      std::chrono::nanoseconds(std::min<std::uint64_t>(words[2], kLongest));
  std::memcpy(activity.what.data(), &words[3], activity.what.size());
  for (char& letter : activity.what)
    if (letter != 0 && (letter < ' ' || letter > '~')) letter = '?';
  activity.tag.step = words[5];
  activity.doing = static_cast<Doing>(std::min<std::uint64_t>(words[6] & 0xFFU, 5));
  activity.tag.direction =
      static_cast<Direction>(std::min<std::uint64_t>((words[6] >> 8U) & 0xFFU, 2));
  activity.of_unit = ((words[6] >> 16U) & 1U) != 0;
  activity.sent = ((words[6] >> 17U) & 1U) != 0;
  activity.peer = Rank{part(6, 32)};
  activity.tag.stage = Stage{part(7, 0)};
  activity.tag.micro_batch = MicroBatch{part(7, 32)};
  activity.tag.slice = Slice{part(8, 0)};
  activity.tag.replica = Replica{part(8, 32)};
  return activity;
}

ProgressSlot::ProgressSlot(std::string path) : path_(std::move(path)) {
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
  kinds_.reserve(kMostKinds);
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

}  // namespace millrace::zeromq
