// Reading and writing files; see files.hpp.
#include "cli/files.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>
#include <system_error>
#include <unistd.h>

#include "millrace/core/error.hpp"

namespace millrace::cli {

std::string read_file(const std::string& option, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file || !text)
    throw InvalidArgument(option + " " + path + " cannot be read: " + std::strerror(errno));
  return text.str();
}

void write_file(const std::string& option, const std::string& path, const std::string& text) {
  if (path.empty() || path == "-") {
    std::cout << text;
    return;
  }
  const std::string temporary = path + "." + std::to_string(::getpid()) + ".part";
  std::ofstream file(temporary, std::ios::binary);
  file << text;
  file.close();
  if (file && std::rename(temporary.c_str(), path.c_str()) == 0) return;
  const std::string reason = std::strerror(errno);
  std::remove(temporary.c_str());
  throw InvalidArgument(option + " " + path + " cannot be written: " + reason);
}

}  // namespace millrace::cli
