// Reading and writing files; see files.hpp.
#include "cli/files.hpp"

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <system_error>
#include <unistd.h>

#include "millrace/core/error.hpp"

namespace millrace::cli {

std::string read_file(const std::string& option, const std::string& path, const FileLimit& limit) {
  return read_whole<std::string>(option + " " + path, path, limit);
}

namespace {

/// Where the bytes go first, and where they end.
struct Target {
  std::string temporary;
  std::string final;

  [[nodiscard]] bool in_place() const { return temporary == final; }
};

/// A link stays a link: what it points to is replaced.
Target target_of(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path resolved =
      fs::is_symlink(path, error) ? fs::canonical(path, error) : fs::path(path);
  const std::string final = error || resolved.empty() ? path : resolved.string();
  if (fs::exists(final, error) && !fs::is_regular_file(final, error)) return {final, final};
  return {final + "." + std::to_string(::getpid()) + ".part", final};
}

std::string refusal(const std::string& option, const std::string& path, int reason) {
  return option + " " + path + " cannot be written: " + std::generic_category().message(reason);
}

bool is_standard_output(const std::string& path) {
  return path.empty() || path == "-";
}

/// 0, or why not.
int write(const std::string& path, const std::string& text) {
  const Target target = target_of(path);
  std::ofstream file(target.temporary, std::ios::binary);
  file << text;
  file.close();
  if (file &&
      (target.in_place() || std::rename(target.temporary.c_str(), target.final.c_str()) == 0))
    return 0;
  const int reason = errno;
  if (!target.in_place()) std::remove(target.temporary.c_str());
  return reason;
}

}  // namespace

void require_writable(const std::string& option, const std::string& path) {
  if (is_standard_output(path)) return;
  const Target target = target_of(path);
  std::error_code error;
  if (std::filesystem::is_directory(target.final, error))
    throw InvalidArgument(refusal(option, path, EISDIR));
  if (target.in_place()) return;
  const std::ofstream file(target.temporary, std::ios::binary);
  if (!file) throw InvalidArgument(refusal(option, path, errno));
  std::remove(target.temporary.c_str());
}

void write_files(const std::vector<OutputFile>& files) {
  std::cout << std::flush;  // first what was printed: a file may wait for its reader
  std::string refusals;
  for (const auto& [option, path, text] : files) {
    if (is_standard_output(path)) {
      std::cout << text;
    } else if (const int reason = write(path, text); reason != 0) {
      refusals += (refusals.empty() ? "" : "; ") + refusal(option, path, reason);
    }
  }
  if (!refusals.empty()) throw Error(refusals);
}

}  // namespace millrace::cli
