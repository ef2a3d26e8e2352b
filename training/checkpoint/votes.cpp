// No message announces a file: a waiting process polls the folder.
#include "training/checkpoint/votes.hpp"

#include <algorithm>
#include <thread>

#include "training/checkpoint/folder.hpp"
#include "training/checkpoint/names.hpp"

namespace millrace {
namespace {

using Clock = std::chrono::steady_clock;

/// Between two looks, which cost a few system calls each.
constexpr std::chrono::milliseconds kShortest{1};
constexpr std::chrono::milliseconds kLongest{100};

std::string text_of(const Tensor& bytes) {
  return {static_cast<const char*>(bytes.data()), bytes.bytes()};
}

}  // namespace

VoteFolder::VoteFolder(const std::string& root, const std::string& word, FileSystem& files)
    : root_(root),
      prefix_(std::string(kTemporary) + word + "-"),
      folder_(path_in(root, prefix_ + "votes")),
      files_(files) {}

std::string VoteFolder::path_of(int process) const {
  return path_in(folder_, "rank-" + std::to_string(process));
}

std::string VoteFolder::share_of(int process) const {
  return path_in(folder_, "share-" + std::to_string(process));
}

void VoteFolder::put(const std::string& path, std::span<const std::byte> bytes) {
  files_.make_folder(folder_);
  const std::string unfinished = path + ".tmp";
  write_durably(files_, unfinished, bytes);
  files_.rename(unfinished, path);
  files_.sync_folder(folder_);
  is_known_ = true;
}

void VoteFolder::cast(int process, const std::string& vote) {
  put(path_of(process), std::as_bytes(std::span(vote)));
}

void VoteFolder::give(int process, const Tensor& share) {
  put(share_of(process), {static_cast<const std::byte*>(share.data()), share.bytes()});
}

Tensor VoteFolder::given(int process, std::chrono::milliseconds patience) {
  const std::string path = share_of(process);
  bool voted = false;
  wait(patience, [&] {
    voted = files_.exists(path_of(process));  // before: who has voted gives nothing more
    return files_.exists(path) || voted;
  });
  if (files_.exists(path)) return files_.read(path, ~std::uint64_t{0});
  throw StorageError(voted ? text_of(files_.read(path_of(process), ~std::uint64_t{0})).substr(1)
                           : "it did not write its share in time");
}

/// Shards, votes and folders: whoever writes lets this number grow.
std::size_t VoteFolder::files_there() const {
  std::size_t count = 0;
  for (const std::string& name : files_.list(root_))
    if (name.starts_with(prefix_)) count += 1 + files_.list(path_in(root_, name)).size();
  return count;
}

template <class Done>
void VoteFolder::wait(std::chrono::milliseconds patience, const Done& done) const {
  std::size_t seen = 0;
  auto since = Clock::now();
  for (auto pause = kShortest; !done(); pause = std::min(2 * pause, kLongest)) {
    const std::size_t there = files_there();
    if (there != seen) {
      seen = there;
      since = Clock::now();
      pause = kShortest;
    }
    if (Clock::now() - since >= patience) return;
    std::this_thread::sleep_for(pause);
  }
}

std::vector<std::string> VoteFolder::collect(int count, std::chrono::milliseconds patience) {
  std::vector<std::string> votes(static_cast<std::size_t>(count));
  wait(patience, [&] {
    bool all = true;
    for (int process = 1; process < count; ++process) {
      std::string& vote = votes[static_cast<std::size_t>(process)];
      if (vote.empty() && files_.exists(path_of(process)))
        vote = text_of(files_.read(path_of(process), ~std::uint64_t{0}));
      all = all && !vote.empty();
    }
    return all;
  });
  return votes;
}

void VoteFolder::await_removal(std::chrono::milliseconds patience) {
  wait(patience, [&] {
    const bool is_there = files_.exists(folder_);
    is_known_ = is_known_ || is_there;
    return is_known_ && !is_there;
  });
}

void VoteFolder::remove() {
  try {
    for (const std::string& name : files_.list(folder_)) files_.remove(path_in(folder_, name));
    if (files_.exists(folder_)) files_.remove(folder_);
  } catch (const StorageError&) {
    return;  // the next start removes it
  }
}

}  // namespace millrace
