// Sample files that tests write: CSV and IDX, whole or broken on purpose.
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include <zlib.h>

namespace millrace::testing_files {

/// A folder of its own that goes away with the object. Tests run beside one another, so the name is
/// only its beginning.
class Folder {
 public:
  explicit Folder(const std::string& name) {
    const auto files = std::filesystem::path(MILLRACE_BINARY_DIR) / "test_files";
    std::filesystem::create_directories(files);
    std::string path = (files / (name + ".XXXXXX")).string();
    if (mkdtemp(path.data()) == nullptr)
      throw std::system_error(errno, std::generic_category(), "cannot make " + path);
    path_ = path;
  }

  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] std::string path() const { return path_.string(); }

  std::string write(const std::string& name, const std::string& bytes) const {
    std::string file = (path_ / name).string();
    std::ofstream(file, std::ios::binary) << bytes;
    return file;
  }

  std::string write_gzip(const std::string& name, const std::string& bytes) const {
    std::string file = (path_ / name).string();
    gzFile stream = gzopen(file.c_str(), "wb");
    gzwrite(stream, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(stream);
    return file;
  }

 private:
  std::filesystem::path path_;
};

inline std::string big_endian(std::uint32_t value) {
  std::string bytes;
  for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>((value >> shift) & 0xFFU);
  return bytes;
}

/// n images of side x side whose class shows as a bright band, with a little noise by position.
inline std::string idx_images(std::uint32_t n, std::uint32_t side) {
  std::string bytes = big_endian(0x803) + big_endian(n) + big_endian(side) + big_endian(side);
  for (std::uint32_t i = 0; i < n; ++i)
    for (std::uint32_t y = 0; y < side; ++y)
      for (std::uint32_t x = 0; x < side; ++x) {
        const bool band = y * 10 / side == i % 10;
        bytes += static_cast<char>((band ? 180U : 0U) + (i * 7U + x * 13U + y * 29U) % 64U);
      }
  return bytes;
}

inline std::string idx_labels(std::uint32_t n) {
  std::string bytes = big_endian(0x801) + big_endian(n);
  for (std::uint32_t i = 0; i < n; ++i) bytes += static_cast<char>(i % 10);
  return bytes;
}

}  // namespace millrace::testing_files
