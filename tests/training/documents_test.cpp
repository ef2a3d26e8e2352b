// A text as documents: which characters they are, the micro-batches that hold them, padded to their
// own longest, and the mini-batches of an epoch.
#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/training/dataset.hpp"
#include "millrace/training/loader.hpp"

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

TrainTest documents_of(const std::string& text, std::int64_t positions) {
  return text_samples("lines", text, {.positions = positions, .lengths = Lengths::Bucket});
}

/// Lines of 1 to 23 characters, in no order.
std::string uneven_lines(int count = 60) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    for (int j = 0; j < 1 + (i * 7) % 23; ++j) text += static_cast<char>('a' + (i + j) % 26);
    text += '\n';
  }
  return text;
}

/// "inputs > targets" of a document, as they lie in the text.
std::vector<std::string> told(const Dataset& data) {
  const auto inputs = data.inputs[0].values.as<std::uint8_t>();
  const auto targets = data.targets[0].values.as<std::uint8_t>();
  std::vector<std::string> documents;
  for (const Dataset::Document& document : *data.windows.documents) {
    std::string text;
    for (const auto& bytes : {inputs, targets}) {
      const auto own = bytes.subspan(static_cast<std::size_t>(document.first),
                                     static_cast<std::size_t>(document.positions));
      text += (text.empty() ? "" : " > ") + std::string(own.begin(), own.end());
    }
    std::ranges::replace(text, '\n', '|');
    documents.push_back(text);
  }
  return documents;
}

/// Where weights are 1, and what else is there.
struct Unpadded {
  std::string inputs, targets;
  int padding = 0;
};

/// Row `row` of a micro-batch.
Unpadded row_of(Batch& batch, const Vocabulary& vocabulary, int micro_batch, std::int64_t row) {
  const Unit unit{MicroBatch{micro_batch}, Slice{0}};
  const TensorList inputs = batch.inputs(unit);
  const TensorList targets = batch.targets(unit);
  const std::int64_t positions = inputs[0].dims()[1];
  EXPECT_EQ(targets[0].dims(), inputs[0].dims());
  EXPECT_EQ(targets[1].dims(), inputs[0].dims());
  Unpadded own;
  for (std::int64_t i = row * positions; i < (row + 1) * positions; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (targets[1].as<float>()[at] == 1.0F) {
      EXPECT_EQ(own.padding, 0) << "a token behind padding";
      own.inputs += vocabulary.decode({inputs[0].as<std::int32_t>()[at]});
      own.targets += vocabulary.decode({targets[0].as<std::int32_t>()[at]});
      continue;
    }
    EXPECT_EQ(targets[1].as<float>()[at], 0.0F);
    EXPECT_EQ(inputs[0].as<std::int32_t>()[at], 0);
    EXPECT_EQ(targets[0].as<std::int32_t>()[at], 0);
    ++own.padding;
  }
  return own;
}

TEST(Documents, AreLinesInPiecesOfTheContext) {
  const TrainTest data = documents_of("ab\n\n\ncdefghi\nj\nkl\nmn", 4);
  EXPECT_THAT(told(data.train),
              ElementsAre("ab > b|", "|cde > cdef", "fghi > ghi|", "|j > j|", "|kl > kl|"));
  EXPECT_THAT(told(data.test), ElementsAre("|m > mn"));
}

TEST(Documents, EveryCharacter_IsATargetOnce) {
  for (const std::int64_t positions : {1, 5, 100}) {
    const std::string text = uneven_lines();
    const TrainTest data = documents_of(text + "\n\n" + text, positions);
    EXPECT_EQ("a" + text_of_targets(data.train) + text_of_targets(data.test), text + text);
    for (const Dataset::Document& document : *data.train.windows.documents)
      EXPECT_LE(document.positions, positions);
  }
}

TEST(Documents, OfOneLineAreCutWhereWindowsAre) {
  const TrainTest data = documents_of(std::string(95, 'x') + "abcde", 7);
  EXPECT_EQ(text_of_targets(data.train).size(), 90U);
  EXPECT_EQ(text_of_targets(data.test), "xxxxabcde");
}

TEST(Documents, LongestFirst_PaddedPerMicroBatch) {
  const TrainTest data = documents_of(uneven_lines(), 20);
  const Dataset& train = data.train;
  std::vector<std::int32_t> rows(22);
  std::iota(rows.begin(), rows.end(), 3);
  Batch batch;
  batch.fill(train, rows, 4);
  EXPECT_EQ(batch.samples(), 22);
  const std::vector<std::string> documents = told(train);
  std::vector<std::string> left(documents.begin() + 3, documents.begin() + 25);
  std::size_t last = 100;
  std::int64_t positions = 0;
  for (int i = 0; i < 4; ++i) {
    int least_padding = 100;
    positions += batch.samples(MicroBatch{i}) * batch.positions(MicroBatch{i});
    for (std::int64_t row = 0; row < batch.samples(MicroBatch{i}); ++row) {
      const Unpadded own = row_of(batch, *train.windows.vocabulary, i, row);
      EXPECT_LE(own.inputs.size(), last);
      last = own.inputs.size();
      least_padding = std::min(least_padding, own.padding);
      std::string text = own.inputs + " > " + own.targets;
      std::ranges::replace(text, '\n', '|');
      const auto found = std::ranges::find(left, text);
      ASSERT_NE(found, left.end()) << text;
      left.erase(found);
    }
    EXPECT_EQ(least_padding, 0) << i;
  }
  EXPECT_THAT(left, testing::IsEmpty());
  EXPECT_EQ(batch.positions(), positions);
  EXPECT_LT(batch.positions(MicroBatch{3}), batch.positions(MicroBatch{0}));
}

TEST(Documents, EqualLengths_KeepTheirOrder) {
  const TrainTest data = documents_of("aa\nbbbb\ncc\ndd\neeee\nff\ngg\nhh\nii\njj\nkk\nll\n", 8);
  EXPECT_THAT(longest_first(data.train, std::vector<std::int32_t>{5, 4, 3, 1, 2}),
              ElementsAre(4, 1, 5, 3, 2));
}

TEST(Documents, TakeTheMemoryOfTheLongestOnce) {
  const TrainTest data = documents_of(uneven_lines(), 20);
  Batch batch;
  const void* memory = nullptr;
  for (std::int32_t first = 0; first < 40; ++first) {
    batch.fill(data.train, std::vector<std::int32_t>{first, first + 1}, 2);
    const void* now = std::as_const(batch.inputs({MicroBatch{1}, Slice{0}})[0]).data();
    if (memory == nullptr) memory = now;
    EXPECT_EQ(now, memory);
  }
  batch.fill(data.train, std::vector<std::int32_t>{0}, 2);
  EXPECT_EQ(batch.inputs({MicroBatch{1}, Slice{0}})[0].dims(), (Dims{0, 1}));
}

/// Which documents the next mini-batch has, by their targets.
std::multiset<std::string> drawn(Loader& loader, const Vocabulary& vocabulary) {
  Batch& batch = loader.next();
  std::multiset<std::string> texts;
  for (int i = 0; i < batch.micro_batches(); ++i)
    for (std::int64_t row = 0; row < batch.samples(MicroBatch{i}); ++row)
      texts.insert(row_of(batch, vocabulary, i, row).targets);
  return texts;
}

TEST(Documents, ComeOncePerEpochFromAnyStart) {
  const TrainTest data = documents_of(uneven_lines(), 20);
  const Vocabulary& vocabulary = *data.train.windows.vocabulary;
  std::multiset<std::string> all;
  const auto bytes = data.train.targets[0].values.as<std::uint8_t>();
  for (const Dataset::Document& document : *data.train.windows.documents) {
    const auto own = bytes.subspan(static_cast<std::size_t>(document.first),
                                   static_cast<std::size_t>(document.positions));
    all.insert({own.begin(), own.end()});
  }
  LoaderOptions options{.batch_size = 8, .micro_batches = 3, .seed = 9};
  Loader loader(data.train, options);
  const std::int64_t batches = loader.batches_per_epoch();
  EXPECT_EQ(batches, (data.train.size() + 7) / 8);
  std::vector<std::multiset<std::string>> seen;
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::multiset<std::string> of_epoch;
    for (std::int64_t i = 0; i < batches; ++i) {
      seen.push_back(drawn(loader, vocabulary));
      of_epoch.insert(seen.back().begin(), seen.back().end());
    }
    EXPECT_EQ(of_epoch, all) << epoch;
  }
  EXPECT_NE(seen[0], seen[static_cast<std::size_t>(batches)]);
  options.workers = 2;
  options.micro_batches = 5;
  Loader later(data.train, options);
  later.seek({1, 2});
  for (std::size_t i = 2; i < static_cast<std::size_t>(batches); ++i)
    EXPECT_EQ(drawn(later, vocabulary), seen[static_cast<std::size_t>(batches) + i]);
}

TEST(Documents, AreOtherDataThanWindowsOfTheSameText) {
  const std::string text = uneven_lines(200);
  const std::string windows = contents_digest(text_samples("lines", text, {.positions = 20}).train);
  const std::string documents = contents_digest(documents_of(text, 20).train);
  EXPECT_NE(documents, windows);
  EXPECT_NE(documents, contents_digest(documents_of(text, 19).train));
  EXPECT_EQ(documents, contents_digest(documents_of(text, 20).train));
}

TEST(Documents, ThatCannotBeAreRefused) {
  const auto refuses = [](const std::string& text, const char* why) {
    EXPECT_THAT([&] { (void)documents_of(text, 8); },
                ThrowsMessage<InvalidArgument>(HasSubstr(why)))
        << text;
  };
  refuses("", "lines: 0 bytes are too few");
  refuses("\n\n\n\n\n\n\n\n\n\n", "10 bytes are too few: lines of nine tenths of them train");
  refuses("abc" + std::string(13, '\n'), "16 bytes are too few");
  const auto wrong = [](const char* data, const char* why) {
    EXPECT_THAT([&] { (void)load_data(data, 1, 8, Lengths::Bucket); },
                ThrowsMessage<InvalidArgument>(HasSubstr(why)));
  };
  wrong("digits", "lengths 'bucket' are of lines; 'digits' is no text: give text or text:FILE");
  EXPECT_THAT([] { (void)lengths_called("long"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("'long'; known are fixed, bucket")));
  EXPECT_EQ(lengths_called("bucket"), Lengths::Bucket);
  const TrainTest data = documents_of(uneven_lines(), 20);
  EXPECT_THAT([&] { Batch(data.train, 2, 2); },
              ThrowsMessage<InvalidArgument>(
                  HasSubstr("lines are documents of different lengths, which are not cut into "
                            "slices; got 2, 1 is allowed")));
}

}  // namespace
}  // namespace millrace
