// Runs the built command as a user's shell does.
#pragma once

#include <array>
#include <cstdio>
#include <string>
#include <sys/wait.h>

namespace millrace::test {

struct Ran {
  int code = 0;
  std::string text;  ///< standard output, and standard error when merged
};

/// `millrace ARGUMENTS` with standard error merged into the text, without the lines that tell how
/// far a slow machine is.
inline Ran command(const std::string& arguments) {
  const std::string line =
      std::string("MILLRACE_PROGRESS=${MILLRACE_PROGRESS-never} " MILLRACE_BINARY_DIR
                  "/millrace ") +
      arguments + " 2>&1";
  std::FILE* pipe = ::popen(line.c_str(), "r");
  Ran ran;
  std::array<char, 4096> buffer{};
  for (std::size_t size = 1; size > 0;) {
    size = std::fread(buffer.data(), 1, buffer.size(), pipe);
    ran.text.append(buffer.data(), size);
  }
  const int status = ::pclose(pipe);
  ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return ran;
}

}  // namespace millrace::test
