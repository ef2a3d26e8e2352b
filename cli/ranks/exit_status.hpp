// What the status with which a rank's process ended means for its job.
#pragma once

#include <string>

namespace millrace::cli {

/// 0 for a good end; higher ones explain lower ones.
[[nodiscard]] int weight_of(int status);

/// It failed because another rank did, and says which.
[[nodiscard]] bool blames_another(int status);

/// It aborted itself: a program that lets what it found of another rank escape its main does.
[[nodiscard]] bool is_aborted(int status);

/// Exit code of the launch that this is the cause of.
[[nodiscard]] int code_of(int status);

/// "ended with exit code 1", "was ended by signal 9 (Killed)".
[[nodiscard]] std::string end_of(int status);

}  // namespace millrace::cli
