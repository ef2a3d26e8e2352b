// A directory that only this user may enter, for what endpoints on one machine share by name.
#pragma once

#include <string>

namespace millrace {

/// A directory that only this user may enter (0700), with a random name, removed with its content
/// at the end. Sockets of ipc endpoints live in one, because any process that can connect may send.
/// Thread-safety: externally synchronised.
class PrivateDirectory {
 public:
  /// Makes `parent`/millrace-XXXXXX. Throws TransportError when that fails or is not ours.
  explicit PrivateDirectory(const std::string& parent);
  PrivateDirectory(const PrivateDirectory&) = delete;
  PrivateDirectory& operator=(const PrivateDirectory&) = delete;
  ~PrivateDirectory();

  [[nodiscard]] const std::string& path() const { return path_; }

  /// Throws TransportError unless `path` is a real directory of this user that no other may
  /// enter.
  static void check(const std::string& path);

 private:
  std::string path_;
};

}  // namespace millrace
