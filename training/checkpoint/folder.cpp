// The order of the calls is the protocol: each step is durable before the next one relies on it.
#include "training/checkpoint/folder.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <thread>
#include <unistd.h>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/training/checkpoint.hpp"
#include "training/checkpoint/names.hpp"

namespace millrace {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

/// The fault that is known already is the one to tell.
void close_after_fault(FileSystem& files, const OpenFile& file) noexcept {
  try {
    files.close(file);
  } catch (const std::exception&) {
    return;
  }
}

}  // namespace

void write_durably(FileSystem& files,
                   const std::string& path,
                   std::span<const std::byte> bytes,
                   std::uint64_t room) {
  const OpenFile file = files.create(path);
  try {
    files.reserve(file, std::max<std::uint64_t>(bytes.size(), room));
    while (!bytes.empty()) bytes = bytes.subspan(files.write(file, bytes));
    files.sync(file);
  } catch (const StorageError&) {
    close_after_fault(files, file);
    throw;
  }
  files.close(file);
}

CheckpointFolder::CheckpointFolder(std::string root, FileSystem& files)
    : root_(std::move(root)), files_(files) {}

/// Of another job, which may be leaving as this reads it.
std::string CheckpointFolder::holder(std::chrono::milliseconds waited) const {
  constexpr std::uint64_t kMost = 4096;
  std::string text;
  try {
    const Tensor read = files_.read(path_in(root_, kLockFile), kMost);
    text.assign(static_cast<const char*>(read.data()), read.bytes());
  } catch (const StorageError&) {
    text.clear();
  }
  while (!text.empty() && text.back() == '\n') text.pop_back();
  for (std::size_t at = text.find('\n'); at != text.npos; at = text.find('\n'))
    text.replace(at, 1, ", ");
  const std::string others = text.empty() ? "another job" : "another job (" + text + ")";
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(waited).count();
  return root_ + ": " + others + " saves there" +
         (seconds > 0 ? ", still after " + std::to_string(seconds) + " s" : "") +
         "; wait for its end, or save to another folder";
}

std::string CheckpointFolder::lock(const std::string& job, std::chrono::milliseconds wait) {
  constexpr std::chrono::milliseconds kBetween{50};
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const std::string text =
      "job " + job + "\nhost " + host.data() + "\nprocess " + std::to_string(::getpid()) + "\n";
  const auto end = std::chrono::steady_clock::now() + wait;
  while (!lock_) {
    lock_ = files_.lock(path_in(root_, kLockFile), text);
    if (lock_) break;
    if (std::chrono::steady_clock::now() >= end) return holder(wait);
    std::this_thread::sleep_for(kBetween);
  }
  return {};
}

void CheckpointFolder::unlock() noexcept {
  if (lock_) files_.unlock(*lock_);
  lock_.reset();
}

void CheckpointFolder::probe(int process, std::uint64_t bytes) {
  const std::string folder =
      path_in(root_, std::string(kTemporary) + "probe-" + std::to_string(process));
  try {
    files_.make_folder(folder);
    write_durably(files_, path_in(folder, "probe"), bytes_of("x"), bytes);
    remove_folder(folder);
  } catch (const StorageError&) {
    remove_as_far(folder);
    throw;
  }
}

void CheckpointFolder::prepare() {
  files_.make_folder(root_);
  sweep();
}

void CheckpointFolder::sweep(const std::string& spared) {
  for (const std::string& name : files_.list(root_)) {
    if (!name.starts_with(kTemporary) && !name.starts_with(kTrash)) continue;
    if (spared.empty() || !name.starts_with(spared)) remove_folder(path_in(root_, name));
  }
}

void CheckpointFolder::put_aside(const std::string& folder, std::string_view prefix) {
  const std::string name = folder.substr(folder.rfind('/') + 1);
  const std::string aside = path_in(root_, std::string(prefix) + name);
  if (folder != path_in(root_, name) || !files_.exists(folder)) return;
  remove_folder(aside);  // an earlier one of the same step
  files_.rename(folder, aside);
}

std::string CheckpointFolder::temporary(const Moment& moment) const {
  return path_in(root_, unfinished_ + folder_name(moment));
}

std::string CheckpointFolder::place_of(const Moment& moment) const {
  return path_in(root_, folder_name(moment));
}

bool CheckpointFolder::has(const Moment& moment) const {
  return files_.exists(path_in(place_of(moment), kManifestFile));
}

std::string CheckpointFolder::begin(const Moment& moment) {
  files_.make_folder(temporary(moment));
  return temporary(moment);
}

void CheckpointFolder::remove_as_far(const std::string& folder) noexcept {
  try {
    remove_folder(folder);
  } catch (const std::exception&) {
    return;  // the next start removes it
  }
}

void CheckpointFolder::abandon(const Moment& moment) noexcept {
  remove_as_far(temporary(moment));
}

bool CheckpointFolder::stands(const std::string& folder, const std::string& manifest) {
  const std::string path = path_in(folder, kManifestFile);
  if (!files_.exists(path)) return false;
  const Tensor standing = files_.read(path, ~std::uint64_t{0});
  return standing.bytes() == manifest.size() &&
         std::memcmp(standing.data(), manifest.data(), manifest.size()) == 0;
}

std::string CheckpointFolder::commit(const Moment& moment,
                                     const std::string& manifest,
                                     const std::string& run) {
  const std::string aside = temporary(moment);
  std::string folder = place_of(moment);
  if (stands(folder, manifest)) {
    remove_folder(aside);
    return folder;
  }
  write_durably(files_, path_in(aside, kRunFile), bytes_of(run));
  const std::string unfinished = path_in(aside, std::string(kManifestFile) + ".tmp");
  write_durably(files_, unfinished, bytes_of(manifest));
  files_.rename(unfinished, path_in(aside, kManifestFile));
  files_.sync_folder(aside);
  files_.rename(aside, folder);
  files_.sync_folder(root_);
  return folder;
}

void CheckpointFolder::retire(const Retention& retention) {
  const std::vector<CheckpointPlace> places = find_checkpoints(root_, files_);
  std::set<std::string> best;  // any of the newest may be resumed
  for (std::size_t i = 0; retention.best && std::cmp_less(i, retention.newest); ++i) {
    if (i == places.size()) break;
    best.insert(best_named_in(places[i].folder, files_));
  }
  bool renamed = false;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const auto& [folder, step, micro_batches] = places[i];
    if (best.contains(folder)) continue;
    if (std::cmp_less(i, retention.newest) || folder == retention.loaded) continue;
    if (retention.every > 0 && step % retention.every == 0 && micro_batches == 0) continue;
    files_.rename(folder, path_in(root_, std::string(kTrash) + folder_name({step, micro_batches})));
    renamed = true;
  }
  // First the name goes for good, then the files: half a checkpoint is never found.
  if (renamed) files_.sync_folder(root_);
  sweep(spared_);
}

void CheckpointFolder::remove_folder(const std::string& path) {
  if (!files_.exists(path)) return;
  for (const std::string& name : files_.list(path)) files_.remove(path_in(path, name));
  files_.remove(path);
}

}  // namespace millrace
