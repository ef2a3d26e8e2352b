// Text as data: vocabularies, windows side by side and overlapping, and files.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/training/dataset.hpp"
#include "millrace/training/loader.hpp"

namespace millrace {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr const char* kText =
    "the quick brown fox jumps over the lazy dog and goes on to other things, one by one.\n";

std::string long_text(int times = 20) {
  std::string text;
  for (int i = 0; i < times; ++i) text += std::to_string(i) + " " + kText;
  return text;
}

/// Tokens of unit {0, slice} as text.
std::string text_in(Batch& batch, const Vocabulary& vocabulary, bool targets, int slice = 0) {
  const Unit unit{MicroBatch{0}, Slice{slice}};
  const TensorList list = targets ? batch.targets(unit) : batch.inputs(unit);
  const auto tokens = list[0].as<std::int32_t>();
  return vocabulary.decode({tokens.begin(), tokens.end()});
}

TEST(Vocabulary, NumbersTheBytesThatOccurInTheirOrder) {
  const Vocabulary vocabulary("banana\n");
  EXPECT_EQ(vocabulary.bytes(), "\nabn");
  EXPECT_EQ(vocabulary.encode("nab"), (std::vector<std::int32_t>{3, 1, 2}));
  EXPECT_EQ(vocabulary.decode({3, 1, 2}), "nab");
  EXPECT_EQ(Vocabulary::of_all_bytes().encode("\xC3"), (std::vector<std::int32_t>{0xC3}));
  EXPECT_THAT([&] { (void)vocabulary.encode("nax"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("byte 2 of the text, 120, is not in")));
  EXPECT_THAT([&] { (void)vocabulary.decode({4}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("token 4 is outside 0..3")));
}

TEST(TextSamples, Evaluation_HasEveryTargetOnce) {
  const std::string text = long_text();
  const TrainTest data = text_samples("text", text, {.positions = 16});
  const std::size_t train = text.size() * 9 / 10;
  std::vector<std::int32_t> rows(static_cast<std::size_t>(data.test.size()));
  std::iota(rows.begin(), rows.end(), 0);
  Batch batch;
  batch.fill(data.test, rows, 1);
  const std::size_t judged = rows.size() * 16;
  EXPECT_GT(judged + 16, text.size() - train - 1);
  const Vocabulary& vocabulary = *data.test.windows.vocabulary;
  EXPECT_EQ(text_in(batch, vocabulary, false), text.substr(train, judged));
  EXPECT_EQ(text_in(batch, vocabulary, true), text.substr(train + 1, judged));
  EXPECT_EQ(text_of_targets(data.test), text.substr(train + 1, judged));
}

TEST(TextSamples, TrainingSamples_AreRandomWindows) {
  const std::string text = long_text();
  const TrainTest data = text_samples("text", text, {.positions = 16});
  const auto last = static_cast<std::int32_t>(data.train.size() - 1);
  EXPECT_EQ(static_cast<std::size_t>(last), text.size() * 9 / 10 - 1 - 16);
  Batch batch;
  for (const std::int32_t row : {0, 7, last}) {
    batch.fill(data.train, std::vector<std::int32_t>{row}, 1, 3);
    std::string inputs;
    std::string targets;
    for (int slice = 0; slice < 3; ++slice) {
      EXPECT_EQ(batch.first_position({MicroBatch{0}, Slice{slice}}),
                static_cast<std::int64_t>(inputs.size()));
      inputs += text_in(batch, *data.train.windows.vocabulary, false, slice);
      targets += text_in(batch, *data.train.windows.vocabulary, true, slice);
    }
    EXPECT_EQ(inputs, text.substr(static_cast<std::size_t>(row), 16));
    EXPECT_EQ(targets, text.substr(static_cast<std::size_t>(row) + 1, 16));
  }
}

TEST(TextSamples, DependOnSeedAndMiniBatchOnly) {
  const TrainTest data = text_samples("text", long_text(), {.positions = 16});
  const auto rows = drawn_windows(data.train, 100, 3, 5);
  EXPECT_EQ(rows, drawn_windows(data.train, 100, 3, 5));
  EXPECT_NE(rows, drawn_windows(data.train, 100, 4, 5));
  EXPECT_NE(rows, drawn_windows(data.train, 100, 3, 6));
  const auto fewer = drawn_windows(data.train, 10, 3, 5);
  EXPECT_TRUE(std::equal(fewer.begin(), fewer.end(), rows.begin()));
  std::set<std::int32_t> different(rows.begin(), rows.end());
  EXPECT_GT(different.size(), 90U);
  EXPECT_LT(*different.rbegin(), data.train.size());
}

TEST(TextSamples, ComeFromALoaderThatGoesOnAnywhere) {
  const TrainTest data = text_samples("text", long_text(), {.positions = 16});
  const LoaderOptions options{.batch_size = 8, .micro_batches = 1, .seed = 9};
  Loader from_start(data.train, options);
  EXPECT_EQ(from_start.batches_per_epoch(), (data.train.epoch_size() + 7) / 8);
  const Vocabulary& vocabulary = *data.train.windows.vocabulary;
  std::vector<std::string> texts;
  for (std::int64_t i = 0; i < 2 * from_start.batches_per_epoch(); ++i)
    texts.push_back(text_in(from_start.next(), vocabulary, false));
  Loader later(data.train, options);
  later.seek({1, 3});
  EXPECT_EQ(text_in(later.next(), vocabulary, false),
            texts[static_cast<std::size_t>(from_start.batches_per_epoch()) + 3]);
  EXPECT_NE(texts[3], texts[static_cast<std::size_t>(from_start.batches_per_epoch()) + 3]);
}

class TextFile : public testing::Test {
 protected:
  void SetUp() override { std::ofstream(path_, std::ios::binary) << long_text(); }
  void TearDown() override { std::filesystem::remove(path_); }

  std::string path_ =
      testing::TempDir() + "millrace_text_file_" + std::to_string(::getpid()) + ".txt";
};

TEST_F(TextFile, EqualsTheTextInMemory) {
  const TextOptions options{.positions = 16};
  const TrainTest mapped = read_text_samples(path_, options);
  const TrainTest kept = text_samples("text", long_text(), options);
  EXPECT_EQ(contents_digest(mapped.train), contents_digest(kept.train));
  EXPECT_EQ(contents_digest(mapped.test), contents_digest(kept.test));
  EXPECT_NE(contents_digest(mapped.train),
            contents_digest(read_text_samples(path_, {.positions = 17}).train));
  const TrainTest bytes = load_data("text:" + path_ + ",bytes", 1, 16);
  EXPECT_EQ(bytes.train.classes, 256);
  EXPECT_NE(contents_digest(bytes.train), contents_digest(kept.train));
}

/// Tokens of the first epoch, as text.
std::string drawn_from(const Dataset& data, const Vocabulary& vocabulary) {
  Loader loader(data, {.batch_size = 8, .micro_batches = 1, .seed = 9});
  std::string text;
  for (std::int64_t i = 0; i < loader.batches_per_epoch(); ++i) {
    Batch& batch = loader.next();
    text += text_in(batch, vocabulary, false) + text_in(batch, vocabulary, true);
  }
  return text;
}

TEST_F(TextFile, MiniBatches_EqualThoseInMemory) {
  for (const Lengths lengths : {Lengths::Fixed, Lengths::Bucket}) {
    const TextOptions options{.positions = 16, .lengths = lengths};
    const TrainTest file = read_text_samples(path_, options);
    const TrainTest memory = text_samples("text", long_text(), options);
    EXPECT_EQ(file.train.size(), memory.train.size());
    EXPECT_EQ(text_of_targets(file.test), text_of_targets(memory.test));
    EXPECT_EQ(drawn_from(file.train, *file.train.windows.vocabulary),
              drawn_from(memory.train, *memory.train.windows.vocabulary));
  }
}

TEST_F(TextFile, ShortenedDuringUse_IsDamaged) {
  const TrainTest data = read_text_samples(path_, {.positions = 16});
  std::filesystem::resize_file(path_, 100);
  Batch batch;
  batch.fill(data.train, std::vector<std::int32_t>{83}, 1);  // its last target is byte 99
  const auto size = std::to_string(long_text().size());
  EXPECT_THAT([&] { batch.fill(data.train, std::vector<std::int32_t>{84}, 1); },
              ThrowsMessage<DataError>(HasSubstr(path_ + ": ends at byte 100, but had " + size +
                                                 " bytes when it was opened")));
  EXPECT_THROW(drawn_from(data.train, *data.train.windows.vocabulary), DataError);
  EXPECT_THROW((void)contents_digest(data.test), DataError);
  EXPECT_THROW((void)text_of_targets(data.test), DataError);
}

TEST_F(TextFile, IsPackedAsGzipDoes) {
  std::FILE* pipe = ::popen(("gzip -9 -n -c " + path_ + " | wc -c").c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::size_t expected = 0;
  ASSERT_EQ(std::fscanf(pipe, "%zu", &expected), 1);
  ::pclose(pipe);
  EXPECT_EQ(gzipped_size(long_text()), expected);
}

TEST_F(TextFile, ThatIsNoneIsRefused) {
  const auto refuses = [](const std::string& name, std::int64_t positions, const char* why) {
    EXPECT_THAT([&] { (void)load_data(name, 1, positions); },
                ThrowsMessage<InvalidArgument>(HasSubstr(why)))
        << name;
  };
  refuses("text:/nowhere/at/all", 16, "cannot be opened: No such file");
  refuses("text:" + testing::TempDir(), 16, "expected a file of text, found something else");
  const std::string pipe = path_ + ".pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), S_IRUSR | S_IWUSR), 0);
  refuses("text:" + pipe, 16, "expected a file of text, found something else");
  std::filesystem::remove(pipe);
  refuses("text:" + path_, 0, "a model of sequences names");
  refuses("text:" + path_, 1000, "too few for windows of 1000 positions");
  std::ofstream(path_, std::ios::trunc);
  refuses("text:" + path_, 16, "found an empty file");
}

TEST(BuiltInText, IsAsciiOfVerses) {
  const std::string text = built_in_text();
  EXPECT_EQ(text.size(), 949481U);
  EXPECT_TRUE(text.starts_with("The book of the generation of Jesus Christ"));
  EXPECT_EQ(Vocabulary(text).size(), 63);
}

}  // namespace
}  // namespace millrace
