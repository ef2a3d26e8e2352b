// A file system that fails at one call: as a full or broken disk does, or by ending the process
// there, after which what was not made durable is lost.
#pragma once

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "millrace/training/checkpoint.hpp"

namespace millrace::testing_training {

/// What happens at the call.
enum class Fault : std::uint8_t {
  Crash,        ///< the process ends before the call
  CrashAfter,   ///< the process ends behind the call
  NoSpace,      ///< ENOSPC
  InputOutput,  ///< EIO
  ReadOnly,     ///< EROFS, from this call on
  ShortWrite,   ///< writes give 1 byte at a time, from this call on
};

/// Calls with which a process tries, before its first step, whether it can save its share; the
/// first process makes the folder before, in two.
inline constexpr int kCallsOfProbe = 8;
inline constexpr int kCallsOfFolder = 2;

/// Not of std::exception: nothing that handles failures handles the end of the process.
struct Crashed {};

/// Counts the calls that change something. Thread-safety: all calls from any thread.
class FaultyFiles final : public FileSystem {
 public:
  /// At call number `at`, from 0; below 0: never.
  FaultyFiles(Fault fault, int at) : fault_(fault), at_(at) {}

  [[nodiscard]] int calls() const { return calls_; }
  [[nodiscard]] bool crashed() const { return crashed_; }

  OpenFile create(const std::string& path) override {
    const Call call(*this, path);
    OpenFile file = FileSystem::create(path);
    unsynced_.insert(path);
    return file;
  }

  void reserve(const OpenFile& file, std::uint64_t bytes) override {
    const Call call(*this, file.path);
    static_cast<void>(bytes);
  }

  std::size_t write(const OpenFile& file, std::span<const std::byte> bytes) override {
    const Call call(*this, file.path);
    const bool is_short = fault_ == Fault::ShortWrite && at_ >= 0 && calls_ > at_;
    return FileSystem::write(file, is_short ? bytes.first((bytes.size() + 1) / 2) : bytes);
  }

  void sync(const OpenFile& file) override {
    const Call call(*this, file.path);
    unsynced_.erase(file.path);
  }

  void close(const OpenFile& file) override {
    try {
      const Call call(*this, file.path);
    } catch (...) {
      FileSystem::close(file);  // the process' end closes it, and so does a close that fails
      throw;
    }
    FileSystem::close(file);
  }

  void make_folder(const std::string& path) override {
    const Call call(*this, path);
    FileSystem::make_folder(path);
  }

  void sync_folder(const std::string& path) override {
    const Call call(*this, path);
    std::erase_if(renamed_, [&](const auto& pair) {
      return std::filesystem::path(pair.second).parent_path() == path;
    });
  }

  void rename(const std::string& from, const std::string& to) override {
    const Call call(*this, to);
    FileSystem::rename(from, to);
    renamed_.emplace_back(from, to);
  }

  void remove(const std::string& path) override {
    const Call call(*this, path);
    FileSystem::remove(path);
    std::erase_if(renamed_, [&](const auto& pair) { return pair.second == path; });
  }

  /// The machine loses its power: names that were not made durable are as they were, and files that
  /// were not are cut in half.
  void lose_power() {
    for (auto pair = renamed_.rbegin(); pair != renamed_.rend(); ++pair) {
      std::error_code ignored;
      std::filesystem::rename(pair->second, pair->first, ignored);
    }
    for (const std::string& path : unsynced_)
      if (std::filesystem::exists(path))
        std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  }

 private:
  /// One call: fails before it, or ends the process behind it.
  class Call {
   public:
    Call(FaultyFiles& files, const std::string& path) : files_(files), lock_(files.mutex_) {
      const int number = files.calls_++;
      if (files.crashed_) throw Crashed();
      const bool now = number == files.at_;
      if (now && files.fault_ == Fault::Crash) {
        files.crashed_ = true;
        throw Crashed();
      }
      files.crashed_ = now && files.fault_ == Fault::CrashAfter;
      if (now && files.fault_ == Fault::NoSpace) fail(path, ENOSPC);
      if (now && files.fault_ == Fault::InputOutput) fail(path, EIO);
      if (files.at_ >= 0 && number >= files.at_ && files.fault_ == Fault::ReadOnly)
        fail(path, EROFS);
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    ~Call() = default;

   private:
    [[noreturn]] static void fail(const std::string& path, int reason) {
      throw StorageError(path + ": " + std::generic_category().message(reason));
    }

    FaultyFiles& files_;
    std::lock_guard<std::mutex> lock_;
  };

  Fault fault_;
  int at_;
  int calls_ = 0;
  bool crashed_ = false;
  std::mutex mutex_;
  std::set<std::string> unsynced_;
  std::vector<std::pair<std::string, std::string>> renamed_;
};

}  // namespace millrace::testing_training
