// Readers, splits and shuffles: what they give for good files, and the sentence for each bad one.
#include "millrace/training/dataset.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "tests/training/sample_files.hpp"

namespace millrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_files::Folder;
using testing_files::idx_images;
using testing_files::idx_labels;

template <class Failure = DataError>
std::string message_from(const std::function<void()>& work) {
  try {
    work();
  } catch (const Failure& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Digits, AreTheWholeSetInTheUnitInterval) {
  const Dataset data = digits();

  EXPECT_EQ(data.size(), 1797);
  EXPECT_EQ(data.width(), 64);
  EXPECT_EQ(data.classes, 10);
  const auto features = data.inputs[0].values.as<float>();
  EXPECT_EQ(*std::min_element(features.begin(), features.end()), 0.0F);
  EXPECT_EQ(*std::max_element(features.begin(), features.end()), 1.0F);
  EXPECT_EQ(features[2], 5.0F / 16);  // first line: 0,0,5,13,...
  EXPECT_EQ(data.targets[0].values.as<std::int32_t>()[1], 1);
}

TEST(Digits, AreTheSameThroughTheCsvReader) {
  const Dataset built_in = digits();
  const Dataset read = read_samples_csv(std::string(MILLRACE_SOURCE_DIR) + "/data/digits.csv.gz");

  ASSERT_EQ(read.size(), built_in.size());
  EXPECT_TRUE(std::equal(read.inputs[0].values.as<float>().begin(),
                         read.inputs[0].values.as<float>().end(),
                         built_in.inputs[0].values.as<float>().begin()));
}

TEST(Csv, TakesBlankLinesSpacesAndForeignLineEnds) {
  const Folder folder("csv_good");
  const Dataset data = read_samples_csv(folder.write("a.csv", "1, -4,0\r\n\r\n2,3 , 2\n\n"));

  ASSERT_EQ(data.size(), 2);
  EXPECT_EQ(data.width(), 2);
  EXPECT_EQ(data.classes, 3);
  EXPECT_EQ(data.inputs[0].values.as<float>()[1], -1.0F);
  EXPECT_EQ(data.inputs[0].values.as<float>()[0], 0.25F);
}

TEST(Csv, NamesFileLineAndExpectation) {
  const Folder folder("csv_bad");
  const auto complaint = [&](const std::string& text) {
    const std::string file = folder.write("bad.csv", text);
    return message_from([&] { (void)read_samples_csv(file); });
  };

  EXPECT_THAT(
      complaint("1,2,0\n1,2,3,0\n"),
      AllOf(HasSubstr("bad.csv, line 2"), HasSubstr("expected 3 columns as in line 1, found 4")));
  EXPECT_THAT(complaint("1,2,0\n\n1,0\n"), HasSubstr("line 3: expected 3 columns"));
  EXPECT_THAT(complaint("5\n"), HasSubstr("line 1: expected at least 2 columns"));
  EXPECT_THAT(complaint("1,x,0\n"), HasSubstr("expected a finite number in column 2, found 'x'"));
  EXPECT_THAT(complaint("1,nan,0\n"), HasSubstr("expected a finite number in column 2"));
  EXPECT_THAT(complaint("1,2,-1\n"),
              HasSubstr("expected a label from 0 to 1000000 in column 3, found '-1'"));
  EXPECT_THAT(complaint("1,2,0.5\n"), HasSubstr("found '0.5'"));
  EXPECT_THAT(complaint("1,2,\n"), HasSubstr("found ''"));
  EXPECT_THAT(complaint(""), HasSubstr("holds no sample"));
  EXPECT_THAT(
      message_from<InvalidArgument>([&] { (void)read_samples_csv(folder.path() + "/none.csv"); }),
      HasSubstr("cannot be read"));
  EXPECT_THAT(message_from<InvalidArgument>([&] { (void)read_samples_csv(folder.path()); }),
              HasSubstr("cannot be read: Is a directory"));
}

TEST(Csv, Header_IsSkipped) {
  const Folder folder("csv_header");
  for (const char* text : {"width,height,class\n1,-4,0\n2,3,2\n",
                           "\xEF\xBB\xBF\"width\",\"height\",\"class\"\r\n1,-4,0\r\n2,3,2\r\n"}) {
    const Dataset data = read_samples_csv(folder.write("a.csv", text));
    EXPECT_EQ(data.size(), 2);
    EXPECT_EQ(data.inputs[0].values.as<float>()[1], -1.0F);
  }
  const auto complaint = [&](const std::string& text) {
    const std::string file = folder.write("b.csv", text);
    return message_from([&] { (void)read_samples_csv(file); });
  };
  EXPECT_THAT(complaint("width,2,class\n1,2,0\n"), HasSubstr("line 1: expected a finite number"));
  EXPECT_THAT(complaint("1,2,0\nwidth,height,class\n"), HasSubstr("line 2: expected a finite"));
  EXPECT_THAT(complaint("width,height,class\n"), HasSubstr("holds no sample"));
}

TEST(Csv, SemicolonsAndTabs_SeparateWhereNoCommaDoes) {
  const Folder folder("csv_separators");
  for (const char* text : {"1;-4;0\n2;3;2\n", "a\tb\tc\n1\t-4\t0\n2\t3\t2\n"}) {
    const Dataset data = read_samples_csv(folder.write("a.csv", text));
    EXPECT_EQ(data.width(), 2);
    EXPECT_EQ(data.inputs[0].values.as<float>()[2], 0.5F);
  }
  const auto complaint = [&](const std::string& text) {
    const std::string file = folder.write("b.csv", text);
    return message_from([&] { (void)read_samples_csv(file); });
  };
  EXPECT_THAT(complaint("1,5;2,5;0\n"), HasSubstr("decimal commas are not read"));
  EXPECT_THAT(complaint("1 2 0\n"), HasSubstr("separated by commas, semicolons or tabs, found 1"));
}

TEST(Csv, NumbersToRegress_AreRefusedByName) {
  const Folder folder("csv_regression");
  const std::string file = folder.write("a.csv", "1,2,0.5\n");
  EXPECT_THAT(message_from([&] { (void)read_samples_csv(file); }),
              HasSubstr("found '0.5': numbers to regress are not read from a CSV file"));
}

TEST(Csv, Divisor_SurvivesTheSplit) {
  const Folder folder("csv_divisor");
  const std::string small = folder.write("small.csv", "4,2,0\n1,1,1\n");
  const std::string large = folder.write("large.csv", "4,2,0\n1,1,1\n8,1,1\n");
  const TrainTest first = load_data("csv:" + small, 1);
  EXPECT_EQ(first.train.divisor, 4.0F);
  EXPECT_EQ(first.test.divisor, 4.0F);
  EXPECT_EQ(read_samples_csv(large).inputs[0].values.as<float>()[0], 0.5F);
  const Dataset same = read_samples_csv(large, first.train.divisor);
  EXPECT_EQ(same.inputs[0].values.as<float>()[0], 1.0F);
  EXPECT_EQ(same.inputs[0].values.as<float>()[4], 2.0F);
  EXPECT_EQ(same.divisor, 4.0F);
  EXPECT_THAT(message_from<InvalidArgument>([&] { (void)read_samples_csv(large, -1); }),
              HasSubstr("the divisor of features must be at least 0"));
}

TEST(Gzip, IsRefusedWhenCutOrDamagedAtAnyByte) {
  const Folder folder("gzip");
  const std::string good = folder.write_gzip("good.csv.gz", "1,2,0\n3,4,1\n");
  EXPECT_EQ(read_samples_csv(good).size(), 2);

  std::ifstream stream(good, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(stream)), {});
  for (std::size_t cut = 2; cut < bytes.size(); ++cut) {
    const std::string file = folder.write("cut.csv.gz", bytes.substr(0, cut));
    EXPECT_THAT(message_from([&] { (void)read_samples_csv(file); }), HasSubstr("cut off")) << cut;
  }
  std::string damaged = bytes;
  damaged[bytes.size() - 6] = static_cast<char>(damaged[bytes.size() - 6] ^ 1);  // its checksum
  const std::string file = folder.write("damaged.csv.gz", damaged);
  EXPECT_THAT(message_from([&] { (void)read_samples_csv(file); }), HasSubstr("damaged"));
}

TEST(Idx, ReadsPlainAndGzippedFilesWithATestSet) {
  const Folder folder("idx_good");
  folder.write("train-images-idx3-ubyte", idx_images(20, 6));
  folder.write_gzip("train-labels-idx1-ubyte.gz", idx_labels(20));
  folder.write("t10k-images.idx3-ubyte", idx_images(10, 6));
  folder.write("t10k-labels-idx1-ubyte", idx_labels(10));
  const TrainTest data = read_samples_folder(folder.path(), 1);

  EXPECT_EQ(data.train.size(), 20);
  EXPECT_EQ(data.test.size(), 10);
  EXPECT_EQ(data.train.width(), 36);
  EXPECT_EQ(data.train.classes, 10);
  EXPECT_EQ(data.train.targets[0].values.as<std::int32_t>()[13], 3);
  EXPECT_EQ(data.train.inputs[0].values.as<float>()[0], 180.0F / 255);
}

TEST(Idx, IsSplitBySeedWithoutATestSet) {
  const Folder folder("idx_split");
  folder.write("train-images-idx3-ubyte", idx_images(20, 4));
  folder.write("train-labels-idx1-ubyte", idx_labels(20));
  const TrainTest data = read_samples_folder(folder.path(), 1);

  EXPECT_EQ(data.train.size(), 16);
  EXPECT_EQ(data.test.size(), 4);
}

TEST(Idx, NamesFileOffsetAndExpectation) {
  const Folder folder("idx_bad");
  const std::string images = idx_images(10, 4);
  const auto complaint = [&](const std::string& image_bytes, const std::string& label_bytes) {
    const std::string image_file = folder.write("images", image_bytes);
    const std::string label_file = folder.write("labels", label_bytes);
    return message_from([&] { (void)read_samples_idx(image_file, label_file); });
  };

  EXPECT_THAT(
      complaint(images.substr(0, 100), idx_labels(10)),
      AllOf(HasSubstr("images, offset 100"),
            HasSubstr("expected 176 bytes from the extents, found 100 (the file is truncated)")));
  EXPECT_THAT(complaint(images + "x", idx_labels(10)), HasSubstr("expected 176 bytes"));
  EXPECT_THAT(complaint(images.substr(0, 7), idx_labels(10)),
              HasSubstr("offset 7: expected a header of 16 bytes, found the end"));
  EXPECT_THAT(complaint(idx_labels(10), idx_labels(10)),
              HasSubstr("expected the magic number 0x00000803, found 0x00000801"));
  EXPECT_THAT(complaint(images, idx_labels(9)), HasSubstr("labels, offset 4: expected 10 labels"));
  const std::string none = testing_files::big_endian(0x803) + std::string(12, '\0');
  EXPECT_THAT(complaint(none, idx_labels(10)),
              HasSubstr("offset 4: expected an extent of at least 1"));
  const std::string huge = testing_files::big_endian(0x803) + std::string(12, '\xFF');
  EXPECT_THAT(complaint(huge, idx_labels(10)), HasSubstr("at most 4 GiB"));
}

TEST(Split, IsAPartitionThatDependsOnTheSeedAlone) {
  const Dataset data = digits();
  const TrainTest first = split_by_seed(data, 0.8, 1);
  const TrainTest again = split_by_seed(data, 0.8, 1);
  const TrainTest other = split_by_seed(data, 0.8, 2);

  EXPECT_EQ(first.train.size(), 1437);
  EXPECT_EQ(first.test.size(), 360);
  const auto bytes = [](const Dataset& part) {
    return std::string(static_cast<const char*>(part.inputs[0].values.data()),
                       part.inputs[0].values.bytes());
  };
  EXPECT_EQ(bytes(first.test), bytes(again.test));
  EXPECT_NE(bytes(first.test), bytes(other.test));
  std::int64_t sum = 0;
  for (const Dataset* part : {&first.train, &first.test})
    for (const std::int32_t label : part->targets[0].values.as<std::int32_t>()) sum += label;
  std::int64_t whole = 0;
  for (const std::int32_t label : data.targets[0].values.as<std::int32_t>()) whole += label;
  EXPECT_EQ(sum, whole);
}

TEST(Shuffle, EverySeedAndEpoch_HasItsPermutation) {
  std::set<std::vector<std::int32_t>> seen;
  for (std::uint64_t seed = 0; seed < 3; ++seed)
    for (std::uint64_t epoch = 0; epoch < 5; ++epoch) {
      std::vector<std::int32_t> order = shuffled_order(50, seed, epoch);
      EXPECT_EQ(order, shuffled_order(50, seed, epoch));
      EXPECT_TRUE(seen.insert(order).second);
      std::sort(order.begin(), order.end());
      std::vector<std::int32_t> all(50);
      std::iota(all.begin(), all.end(), 0);
      EXPECT_EQ(order, all);
    }
}

TEST(LoadData, ListsTheKnownNames) {
  EXPECT_THAT(message_from<InvalidArgument>([] { (void)load_data("mnist", 1); }),
              HasSubstr("unknown data 'mnist'; known are digits, csv:FILE, idx:FOLDER"));
}

}  // namespace
}  // namespace millrace
