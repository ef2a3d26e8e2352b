// Damage of a checkpoint: bytes flipped, files cut, swapped, of another step. Each is found before
// a weight is touched, or harms nothing. MILLRACE_TIMES multiplies the number of flips.
#include <filesystem>
#include <fstream>
#include <string>
#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/core/random.hpp"
#include "millrace/training/checkpoint.hpp"
#include "tests/training/sample_files.hpp"
#include "tests/training/saved_runs.hpp"
#include "tests/transport/repetitions.hpp"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing_files::Folder;
using testing_training::bytes_in;
using testing_training::files_in;
using testing_training::first_digits;
using testing_training::fit_steps;
using testing_training::saved_options;
using testing_transport::times;

class Damaged : public testing::Test {
 protected:
  Damaged()
      : folder_(std::string("damage_") +
                testing::UnitTest::GetInstance()->current_test_info()->name()) {
    TestOptions options = saved_options(folder_.path());
    options.save.every_steps = 1;
    Trainer trainer(parse_model("mlp:64-6-10"), options.pipeline, options);
    fit_steps(trainer, first_digits(60), 2);
    place_ = folder_.path() + "/step-0000000002";
    files_ = files_in(place_);
    files_["run.json"] = bytes_in(place_ + "/run.json");
  }

  void write(const std::string& file, const std::string& bytes) const {
    std::ofstream(place_ + "/" + file, std::ios::binary) << bytes;
  }

  [[nodiscard]] std::string refusal() const {
    try {
      const Checkpoint checkpoint(place_);
    } catch (const DataError& error) {
      return error.what();
    }
    return "accepted";
  }

  Folder folder_;
  std::string place_;
  std::map<std::string, std::string> files_;
};

TEST_F(Damaged, BytesAreAllFound) {
  ASSERT_EQ(refusal(), "accepted");
  std::uint32_t draw = 0;
  const auto below = [&](std::size_t bound) {
    return random_below({.seed = 3}, draw++, static_cast<std::uint32_t>(bound));
  };
  const std::uint64_t per_file = times(400);
  for (const auto& [file, bytes] : files_) {
    for (std::uint64_t i = 0; i < per_file; ++i) {
      std::string other = bytes;
      const std::size_t at = below(bytes.size());
      other[at] = static_cast<char>(other[at] ^ static_cast<char>(1U << below(8)));
      write(file, other);
      ASSERT_THAT(refusal(), HasSubstr(place_ + "/" + file)) << at;
    }
    write(file, bytes);
  }
  EXPECT_EQ(refusal(), "accepted");
}

TEST_F(Damaged, TensorsAreNamed) {
  const std::string file = "layers.1.optimizer.safetensors";
  std::string other = files_.at(file);
  other.back() = static_cast<char>(other.back() ^ 1);
  write(file, other);
  EXPECT_THAT(refusal(), HasSubstr("tensor 'layers.1.weight/second_moment' is damaged"));
}

TEST_F(Damaged, DamagedFiles_AreFound) {
  for (const auto& [file, bytes] : files_) {
    for (const std::size_t length : {std::size_t{0}, bytes.size() / 2, bytes.size() - 1}) {
      write(file, bytes.substr(0, length));
      EXPECT_THAT(refusal(), HasSubstr(file)) << length;
    }
    write(file, bytes + '\0');
    EXPECT_THAT(refusal(), HasSubstr(file));
    fs::remove(place_ + "/" + file);
    EXPECT_THAT(refusal(), HasSubstr(file));
    if (file != "manifest.json" && file != "run.json") {
      write(file, bytes_in(folder_.path() + "/step-0000000001/" + file));
      EXPECT_THAT(refusal(), HasSubstr(file));
    }
    write(file, bytes);
  }
  const std::string one = "layers.0.weights.safetensors", two = "layers.1.weights.safetensors";
  write(one, files_.at(two));
  write(two, files_.at(one));
  EXPECT_THAT(refusal(), HasSubstr("safetensors"));
}

/// Opening a FIFO waits for a writer.
TEST_F(Damaged, IrregularFiles_AreSkipped) {
  for (const auto& [file, bytes] : files_) {
    fs::remove(place_ + "/" + file);
    ASSERT_EQ(::mkfifo((place_ + "/" + file).c_str(), 0600), 0);
    EXPECT_THAT(refusal(), HasSubstr(file + ": is not a regular file"));
    Trainer next = trainer_of(parse_model("mlp:64-6-10"), saved_options(folder_.path()));
    EXPECT_EQ(next.resume(folder_.path()).folder, folder_.path() + "/step-0000000001") << file;
    fs::remove(place_ + "/" + file);
    write(file, bytes);
  }
}

TEST_F(Damaged, RunFileMakesResumeTakeTheNextOlderCheckpoint) {
  std::string other = files_.at("run.json");
  other[other.find("\"ranks\"") + 1] = 'R';
  write("run.json", other);

  Trainer next = trainer_of(parse_model("mlp:64-6-10"), saved_options(folder_.path()));
  const ResumeReport report = next.resume(folder_.path());
  EXPECT_EQ(report.folder, folder_.path() + "/step-0000000001");
  ASSERT_EQ(report.damaged.size(), 1U);
  EXPECT_THAT(report.damaged[0].fault, HasSubstr("run.json: is damaged: its hash is"));
  EXPECT_THROW(next.resume(place_), DataError);
  EXPECT_THROW((void)run_facts_of(place_), DataError);
}

TEST_F(Damaged, ManifestOfAnotherStepIsFound) {
  write("manifest.json", bytes_in(folder_.path() + "/step-0000000001/manifest.json"));
  EXPECT_THAT(refusal(), HasSubstr("tensor '"));
}

}  // namespace
}  // namespace millrace
