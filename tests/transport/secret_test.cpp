// Secret keys in the memory of this process, and descriptors that it may not open.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <sys/resource.h>
#include <sys/stat.h>
#include <vector>

#include <gmock/gmock.h>

#include "millrace/transport/private_directory.hpp"
#include "millrace/transport/zeromq.hpp"

namespace millrace {
namespace {

/// A secret that is itself not to be found: every letter with some bits turned.
class Hidden {
 public:
  explicit Hidden(const std::string& secret) {
    for (const char letter : secret) letters_ += static_cast<char>(letter ^ kTurned);
  }

  /// How often it lies in the writable memory of this process.
  [[nodiscard]] int found() const {
    int count = 0;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      std::istringstream words(line);
      std::uintptr_t first = 0, last = 0;
      char dash = 0;
      std::string rights;
      words >> std::hex >> first >> dash >> last >> rights;
      if (rights.starts_with("rw") && line.find("[v") == std::string::npos)
        count += found_in(reinterpret_cast<const char*>(first),  // NOLINT
                          reinterpret_cast<const char*>(last));  // NOLINT
    }
    return count;
  }

 private:
  static constexpr char kTurned = 0x2A;

  [[nodiscard]] int found_in(const char* first, const char* last) const {
    const auto same = [](char here, char hidden) { return (here ^ kTurned) == hidden; };
    int count = 0;
    while ((first = std::search(first, last, letters_.begin(), letters_.end(), same)) != last) {
      ++count;
      ++first;
    }
    return count;
  }

  std::string letters_;
};

TEST(Secret, IsNowhereWhenItsLastHolderHasGone) {
  auto keys = std::make_unique<CurveKeys>(make_curve_keys());
  const Hidden hidden(keys->secret_key.text());
  {
    ZeroMqOptions options;
    options.keys = {*keys, {keys->public_key}};
    std::vector<ZeroMqOptions> copies(3, options);
    copies.push_back(copies.front());              // all move
    copies[1].keys.own = make_curve_keys();        // written over
    copies[2].keys.own.secret_key = SecretText();  // forgotten
    EXPECT_GT(hidden.found(), 2);
  }
  keys.reset();

  EXPECT_EQ(hidden.found(), 0);
}

TEST(Secret, WrittenAndReadAsAFile_LeavesNoCopy) {
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  constexpr int kRanks = 3;
  static_cast<void>(write_key_files(directory.path(), kRanks));
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto ring =
        std::make_unique<CurveRing>(read_key_file(directory.path(), Rank{rank}, kRanks));
    // The allocator writes over the first letters of a block that was given back.
    const Hidden hidden(ring->own.secret_key.text().substr(16));
    EXPECT_EQ(hidden.found(), 1) << rank;
  }
}

TEST(Secret, NamedPipeAsKeyFile_IsRefused) {
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  const std::string pipe = directory.path() + "/keys-0";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THROW((void)read_key_file(pipe, Rank{0}, 1), InvalidArgument);
}

TEST(Secret, OfAnotherFormIsNoKey) {
  const CurveKeys keys = make_curve_keys();
  EXPECT_TRUE(is_curve_key(keys.secret_key.text()));
  EXPECT_TRUE(is_curve_key(keys.public_key));
  EXPECT_FALSE(is_curve_key(keys.public_key + "0"));
  EXPECT_FALSE(is_curve_key(keys.public_key.substr(1)));
  EXPECT_FALSE(is_curve_key("~" + keys.public_key.substr(1)));
  EXPECT_FALSE(is_curve_key(std::string(40, '#')));  // five of them make more than 32 bits
}

TEST(ZeroMqListener, TooFewDescriptors_IsRejected) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{100, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  ZeroMqOptions options;
  options.world = 64;
  options.link = ZeroMqLink::Tcp;
  options.insecure = true;
  try {
    const ZeroMqListener listener(options, std::make_shared<ZeroMqContext>());
    ADD_FAILURE() << "opened";
  } catch (const TransportError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("but this process may open only 100"));
  }
  ::setrlimit(RLIMIT_NOFILE, &before);
}

}  // namespace
}  // namespace millrace
