// millrace keys: what ranks on several machines prove to each other who they are with.
#include "cli/ranks/keys.hpp"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include "cli/verbs.hpp"
#include "millrace/core/error.hpp"

namespace millrace::cli {

namespace {

constexpr std::size_t kKeyLength = 40;  // Z85

/// Readable by this user alone from its first moment; never over what exists.
void write_private(const std::string& path, const std::string& text) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  require(file >= 0,
          "the keys cannot be written to " + path + ": " + std::generic_category().message(errno));
  const bool written = ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  ::close(file);
  if (!written) ::unlink(path.c_str());
  require(written, "the keys cannot be written to " + path);
}

void print_keys(int ranks, const std::string& directory) {
  require(ranks >= 1 && ranks <= 4096, "-n " + std::to_string(ranks) + ": must be from 1 to 4096");
  std::error_code error;
  if (std::filesystem::create_directories(directory, error))
    std::filesystem::permissions(directory, std::filesystem::perms::owner_all);
  require(!error, "--out " + directory + ": cannot be made: " + error.message());
  for (const std::string& path : write_key_files(directory, ranks)) std::cout << path << '\n';
}

}  // namespace

std::vector<std::string> write_key_files(const std::string& directory, int ranks) {
  std::vector<CurveKeys> keys;
  std::string public_keys;
  for (int i = 0; i < ranks; ++i) {
    keys.push_back(make_curve_keys());
    public_keys += keys.back().public_key + "\n";
  }
  std::vector<std::string> paths;
  try {
    for (int i = 0; i < ranks; ++i) {
      const CurveKeys& own = keys[static_cast<std::size_t>(i)];
      const std::string path = directory + "/keys-" + std::to_string(i);
      write_private(path, own.public_key + "\n" + own.secret_key + "\n" + public_keys);
      paths.push_back(path);
    }
  } catch (const InvalidArgument&) {
    for (const std::string& path : paths) ::unlink(path.c_str());
    throw;
  }
  return paths;
}

CurveRing read_key_file(const std::string& path, Rank rank, int world) {
  const std::string file_of = "--keys " + path + ": ";
  std::ifstream file(path);
  struct stat facts {};
  require(file.good() && ::stat(path.c_str(), &facts) == 0, file_of + "cannot be read");
  require((facts.st_mode & 077U) == 0,
          file_of + "others may read this secret; give it mode 0600 (chmod 600)");
  CurveRing ring;
  file >> ring.own.public_key >> ring.own.secret_key;
  for (std::string key; file >> key;) ring.public_keys.push_back(key);
  const auto is_key = [](const std::string& key) { return key.size() == kKeyLength; };
  require(is_key(ring.own.public_key) && is_key(ring.own.secret_key) &&
              std::all_of(ring.public_keys.begin(), ring.public_keys.end(), is_key),
          file_of + "this is no file of keys (millrace keys makes them)");
  require(ring.public_keys.size() == static_cast<std::size_t>(world),
          file_of + "made for " + std::to_string(ring.public_keys.size()) +
              " ranks, but there are " + std::to_string(world));
  const auto found =
      std::find(ring.public_keys.begin(), ring.public_keys.end(), ring.own.public_key);
  require(found != ring.public_keys.end(), file_of + "its own key is not among those of all ranks");
  const auto owner = found - ring.public_keys.begin();
  require(owner == rank.value,
          file_of + "these are the keys of rank " + std::to_string(owner) + ", but this is rank " +
              std::to_string(rank.value));
  return ring;
}

void add_keys(CLI::App& app) {
  CLI::App* verb = app.add_subcommand(
      "keys", "Make keys for ranks on several machines, a file for each: keys -n 4 --out DIR");
  auto ranks = std::make_shared<int>(0);
  auto directory = std::make_shared<std::string>();
  verb->add_option("-n,--processes", *ranks, "Number of processes, one per rank")->required();
  verb->add_option("--out", *directory, "Folder that gets keys-0, keys-1, ...; made if missing")
      ->required();
  verb->callback([ranks, directory] { print_keys(*ranks, *directory); });
}

}  // namespace millrace::cli
