// A log file for each rank.
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <ctime>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "cli/ranks/supervisor.hpp"
#include "millrace/core/error.hpp"

namespace millrace::cli {

namespace {

constexpr std::string_view kBegin = "=== attempt ";

/// "rank-2.log".
bool is_log(const std::filesystem::directory_entry& entry) {
  const std::string name = entry.path().filename();
  const std::string_view prefix = "rank-", suffix = ".log";
  std::error_code error;
  if (!name.starts_with(prefix) || !name.ends_with(suffix) || !entry.is_regular_file(error))
    return false;
  const auto digits = std::string_view(name).substr(
      prefix.size(),
      std::max(name.size(), prefix.size() + suffix.size()) - prefix.size() - suffix.size());
  return !digits.empty() &&
         std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; });
}

std::vector<std::string> logs_in(const std::string& directory) {
  std::vector<std::string> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error))
    if (is_log(entry)) paths.push_back(entry.path());
  return paths;
}

/// The last attempt in a log: 0 for an empty one, and at least 1 for any other.
int last_attempt(const std::string& path) {
  std::ifstream log(path);
  int last = 0;
  for (std::string line; std::getline(log, line);) {
    last = std::max(last, 1);
    if (!line.starts_with(kBegin)) continue;
    int attempt = 0;
    std::from_chars(line.data() + kBegin.size(), line.data() + line.size(), attempt);
    last = std::max(last, std::min(attempt, 1'000'000'000));
  }
  return last;
}

std::string time_text() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::string text(32, ' ');
  text.resize(std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &parts));
  return text;
}

}  // namespace

RankLogs::RankLogs(std::string directory) : directory_(std::move(directory)) {
  for (const std::string& log : logs_in(directory_))
    attempt_ = std::max(attempt_, last_attempt(log) + 1);
}

std::string RankLogs::path(int rank) const {
  return directory_ + "/rank-" + std::to_string(rank) + ".log";
}

int RankLogs::open(int rank) {
  const std::string log = path(rank);
  // Opening it would wait for a reader.
  if (std::error_code unknown; std::filesystem::is_fifo(log, unknown))
    throw Error("the log " + log + " cannot be written: it is a named pipe");
  const int file = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const std::string line =
      std::string(kBegin) + std::to_string(attempt_) + ", " + time_text() + " ===\n";
  if (file < 0 || ::write(file, line.data(), line.size()) < 0) {
    const int reason = errno;
    if (file >= 0) ::close(file);
    throw Error("the log " + log +
                " cannot be written: " + std::generic_category().message(reason));
  }
  opened_.push_back(std::filesystem::path(log).filename());
  return file;
}

void RankLogs::set_aside_others() const {
  const std::string before = ".before-attempt-" + std::to_string(attempt_);
  for (const std::filesystem::path log : logs_in(directory_)) {
    if (std::ranges::find(opened_, log.filename().string()) != opened_.end()) continue;
    std::string aside = log.parent_path() / log.stem();
    aside += before;
    while (std::filesystem::exists(aside + ".log")) aside += "-again";
    std::rename(log.c_str(), (aside + ".log").c_str());
  }
}

}  // namespace millrace::cli
