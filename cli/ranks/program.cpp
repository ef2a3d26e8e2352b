// The program that launch runs in each process.
#include <filesystem>
#include <sstream>
#include <system_error>
#include <unistd.h>

#include "cli/ranks/launch.hpp"
#include "cli/usage.hpp"
#include "millrace/core/error.hpp"

namespace millrace::cli {

namespace {

bool is_program(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0;
}

/// Why a path that was typed is none.
std::string refusal_of(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return "there is no such program";
  return std::filesystem::is_directory(path, error) ? "this is a folder, no program"
                                                    : "this may not be executed (chmod +x)";
}

std::string suggestion_for(const std::string& typed) {
  if (is_program("./" + typed)) return "; did you mean ./" + typed + "?";
  const std::string nearest = nearest_name(typed, {"train", "doctor"});
  if (!nearest.empty()) return "; did you mean " + nearest + "?";
  return "; ranks train, doctor, or run a program that PATH finds or whose path is typed";
}

}  // namespace

std::string found_program(const std::string& typed, const std::string& folders) {
  if (typed.find('/') != std::string::npos) {
    require(is_program(typed), "'" + typed + "': " + refusal_of(typed));
    return typed;
  }
  std::istringstream list(folders);
  for (std::string folder; std::getline(list, folder, ':');) {
    const std::string path = (folder.empty() ? "." : folder) + "/" + typed;
    if (is_program(path)) return path;
  }
  throw InvalidArgument("'" + typed + "': there is no such program" + suggestion_for(typed));
}

}  // namespace millrace::cli
