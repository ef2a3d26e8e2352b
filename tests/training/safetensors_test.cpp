// Safetensors: what is written is what every reader of the format reads, always the same bytes; and
// what breaks a rule of the format is refused, by name, before anything is done with it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "millrace/core/error.hpp"
#include "millrace/stages/layer.hpp"
#include "millrace/training/checkpoint.hpp"
#include "millrace/training/trainer.hpp"
#include "tests/training/first_digits.hpp"
#include "tests/training/sample_files.hpp"
#include "tests/training/ten_line_reader.hpp"
#include "training/checkpoint/strict_json.hpp"

namespace millrace {
namespace {

using testing::HasSubstr;
using testing_training::tensors_in;

Tensor counting(DType dtype, const Dims& dims, int first) {
  Tensor tensor(dtype, dims);
  auto* bytes = static_cast<std::uint8_t*>(tensor.data());
  for (std::size_t i = 0; i < tensor.bytes(); ++i)
    bytes[i] = static_cast<std::uint8_t>(static_cast<std::size_t>(first) + i);
  return tensor;
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string text_of(const Tensor& tensor) {
  return {static_cast<const char*>(tensor.data()), tensor.bytes()};
}

/// A file with this header, `bytes` bytes of data, and the true length unless another is given.
std::string file_with(const std::string& header, std::size_t bytes, std::uint64_t length) {
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + std::string(bytes, 'x');
}

std::string file_with(const std::string& header, std::size_t bytes = 0) {
  return file_with(header, bytes, header.size());
}

std::string refusal_of(const std::string& file) {
  try {
    (void)read_safetensors(std::as_bytes(std::span(file)), "some.file");
  } catch (const DataError& error) {
    return error.what();
  }
  return "accepted";
}

std::string entry(const std::string& name,
                  const std::string& shape,
                  const std::string& offsets,
                  const std::string& dtype = "F32") {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":[)" + shape +
         R"(],"data_offsets":[)" + offsets + "]}";
}

TEST(Safetensors, TenLineReader_ReadsWrittenFiles) {
  const Tensor matrix = counting(DType::F32, {3, 5}, 1), wide = counting(DType::F64, {2}, 50),
               half = counting(DType::BF16, {7}, 90), scalar = counting(DType::I64, {}, 7),
               empty = counting(DType::F32, {0, 4}, 0);
  SafetensorsImage image({{"b", DType::F32, {3, 5}},
                          {"a", DType::F64, {2}},
                          {"c \"d\"", DType::BF16, {7}},
                          {"s", DType::I64, {}},
                          {"e", DType::F32, {0, 4}}},
                         {{"step", "12"}});
  image.fill("b", matrix);
  image.fill("a", wide);
  image.fill("c \"d\"", half);
  image.fill("s", scalar);
  image.fill("e", empty);
  const std::string file = text_of(image.bytes());

  const auto tensors = tensors_in(file);
  ASSERT_EQ(tensors.size(), 5U);
  EXPECT_EQ(tensors.at("b"), text_of(matrix));
  EXPECT_EQ(tensors.at("a"), text_of(wide));
  EXPECT_EQ(tensors.at("c \"d\""), text_of(half));
  EXPECT_EQ(tensors.at("s"), text_of(scalar));
  EXPECT_EQ(tensors.at("e"), "");

  const Safetensors read = read_safetensors(image.bytes(), "file");
  EXPECT_EQ(read.metadata, SafetensorsMetadata({{"step", "12"}}));
  ASSERT_EQ(read.entries.size(), 5U);
  EXPECT_EQ(read.entries[0].name, "a");  // widest first, then by name
  EXPECT_EQ(read.entries[1].name, "s");
  EXPECT_EQ(text_of(read.find("b")->tensor()), text_of(matrix));
  EXPECT_EQ(read.find("b")->tensor().dims(), Dims({3, 5}));
  EXPECT_EQ(read.find("s")->tensor().dims(), Dims());
  EXPECT_EQ(read.find("e")->tensor().dims(), Dims({0, 4}));
  EXPECT_EQ(read.find("c \"d\"")->dtype(), DType::BF16);
  EXPECT_EQ(read.find("x"), nullptr);
}

TEST(Safetensors, BytesDependOnNeitherOrderNorEarlierContents) {
  const Tensor one = counting(DType::F32, {9}, 3), two = counting(DType::F32, {2, 2}, 77);
  SafetensorsImage image({{"one", DType::F32, {9}}, {"two", DType::F32, {2, 2}}});
  image.fill("one", counting(DType::F32, {9}, 200));
  image.fill("two", two);
  image.fill("one", one);
  SafetensorsImage other({{"two", DType::F32, {2, 2}}, {"one", DType::F32, {9}}});
  other.fill("one", one);
  other.fill("two", two);
  EXPECT_EQ(text_of(image.bytes()), text_of(other.bytes()));
  EXPECT_EQ(text_of(image.bytes_of("two")), text_of(two));
}

TEST(Safetensors, DataBeginsAtAPage) {
  for (const std::size_t length : {1U, 900U, 1024U}) {
    const std::string name(length, 'n');
    const SafetensorsImage image({{name, DType::F32, {3}}});
    std::uint64_t header = 0;
    std::memcpy(&header, image.bytes().data(), 8);
    EXPECT_EQ((8 + header) % 4096, 0U);
    EXPECT_EQ(image.bytes().size(), 8 + header + 12);
  }
}

TEST(Safetensors, RefusesToWriteWhatNobodyCouldRead) {
  const auto refused = [](std::vector<SafetensorsPlace> places) {
    EXPECT_THROW(SafetensorsImage(std::move(places)), InvalidArgument);
  };
  refused({{"a", DType::F32, {1}}, {"a", DType::F32, {2}}});
  refused({{"__metadata__", DType::F32, {1}}});
  refused({{std::string(1025, 'n'), DType::F32, {1}}});
  refused({{"line\nend", DType::F32, {1}}});
  refused({{"\xFF\xFE", DType::F32, {1}}});
  SafetensorsImage image({{"a", DType::F32, {2}}});
  EXPECT_THROW(image.fill("b", counting(DType::F32, {2}, 0)), InvalidArgument);
  EXPECT_THROW(image.fill("a", counting(DType::F32, {3}, 0)), InvalidArgument);
  EXPECT_THROW(image.fill("a", counting(DType::I32, {2}, 0)), InvalidArgument);
}

TEST(Safetensors, AcceptsWhatTheFormatAllows) {
  EXPECT_EQ(refusal_of(file_with("{}")), "accepted");
  EXPECT_EQ(refusal_of(file_with("{}     ")), "accepted");
  EXPECT_EQ(refusal_of(file_with(R"({"__metadata__":{"a":"b"}})")), "accepted");
  EXPECT_EQ(
      refusal_of(file_with("{" + entry("b", "2", "4,12") + "," + entry("a", "", "0,4") + "}", 12)),
      "accepted");
  EXPECT_EQ(refusal_of(file_with("{" + entry("a", "2,3", "0,6", "BOOL") + "}", 6)), "accepted");
  EXPECT_EQ(refusal_of(file_with("{" + entry("a", "4", "0,2", "F4") + "}", 2)), "accepted");
  EXPECT_EQ(refusal_of(file_with("{" + entry("a", "0,7", "0,0") + "}", 0)), "accepted");
}

TEST(Safetensors, UnknownType_IsRejected) {
  const std::string file = file_with("{" + entry("a", "2,3", "0,6", "BOOL") + "}", 6);
  const Safetensors read = read_safetensors(std::as_bytes(std::span(file)), "file");
  EXPECT_EQ(read.entries[0].dtype(), std::nullopt);
  EXPECT_THROW((void)read.entries[0].tensor(), DataError);
}

struct Broken {
  std::string file;
  std::string sentence;
};

TEST(Safetensors, RefusesWhatBreaksARule) {
  const std::string good = entry("a", "2", "0,8");
  const std::vector<Broken> all = {
      {"", "is cut off: it has 0 bytes"},
      {"1234567", "is cut off: it has 7 bytes"},
      {file_with("{}", 0, 3), "its header has 3 bytes, and 2 follow"},
      {file_with("{}", 0, 100'000'001), "claims a header of 100000001 bytes"},
      {file_with("{}", 0, ~std::uint64_t{0}), "claims a header of 18446744073709551615 bytes"},
      {file_with("", 0), "does not begin with '{'"},
      {file_with(" {}", 0), "does not begin with '{'"},
      {file_with("[]", 0), "does not begin with '{'"},
      {file_with("\xEF\xBB\xBF{}", 0), "does not begin with '{'"},
      {file_with("{}x", 0), "is not JSON at byte 2"},
      {file_with("{\"a\xFF\":1}", 0), "is not JSON"},
      {file_with("{\"a\":1e999}", 0), "a number that is too large"},
      {file_with("{" + good + "," + good + "}", 8), "names 'a' twice"},
      {file_with(R"({"__metadata__":{"a":"b","a":"c"}})"), "names 'a' twice"},
      {file_with(R"({"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8),
       "names 'dtype' twice"},
      {file_with(R"({"__metadata__":{"a":1}})"), "__metadata__ 'a' is not a text"},
      {file_with(R"({"__metadata__":[]})"), "__metadata__ is not an object"},
      {file_with(R"({"a":{"dtype":"F32","shape":[2]}})", 8), "tensor 'a' must have dtype, shape"},
      {file_with(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":0}})", 8),
       "and nothing else"},
      {file_with("{" + entry("a", "2", "0,8", "F33") + "}", 8), "a dtype that the format"},
      {file_with("{" + entry("a", "2", "0,8", "f32") + "}", 8), "a dtype that the format"},
      {file_with("{" + entry("a", "-2", "0,8") + "}", 8), "an extent that is not a whole number"},
      {file_with("{" + entry("a", "2.0", "0,8") + "}", 8), "an extent that is not a whole number"},
      {file_with("{" + entry("a", "\"2\"", "0,8") + "}", 8), "an extent that is not"},
      {file_with("{" + entry("a", "2", "0,8,8") + "}", 8), "two data_offsets"},
      {file_with("{" + entry("a", "2", "8,0") + "}", 8), "lies from byte 8 to 0"},
      {file_with("{" + entry("a", "2", "0,7") + "}", 7), "its dtype and shape make 8 bytes"},
      {file_with("{" + entry("a", "3", "0,1", "F4") + "}", 1), "its dtype and shape make 1 bytes"},
      {file_with("{" + entry("a", "4611686018427387904,2,2", "0,0") + "}"), "too large to address"},
      {file_with("{" + entry("a", "2305843009213693952,2,4", "0,0") + "}"), "too large to address"},
      {file_with("{" + entry("a", "2", "4,12") + "}", 12), "begins at byte 4 of the data"},
      {file_with("{" + good + "," + entry("b", "1", "12,16") + "}", 16), "begins at byte 12"},
      {file_with("{" + good + "," + entry("b", "1", "4,8") + "}", 8), "begins at byte 4"},
      {file_with("{" + good + "}", 9), "has 9 bytes of data, but its tensors end at 8"},
      {file_with("{" + good + "}", 7), "has 7 bytes of data, but its tensors end at 8"},
      {file_with("{" + entry(std::string(1025, 'n'), "", "0,4") + "}", 4), "name has 1025 bytes"},
      {file_with("{" + entry("a\\nb", "", "0,4") + "}", 4), "name has a control character"},
      {file_with(R"({"a":)" + std::string(200, '[') + std::string(200, ']') + "}"),
       "nested deeper than 8 levels"},
  };
  for (const Broken& broken : all) {
    EXPECT_THAT(refusal_of(broken.file), HasSubstr(broken.sentence));
    EXPECT_THAT(refusal_of(broken.file), HasSubstr("some.file: "));
  }
}

TEST(Safetensors, OtherKindsOfFilesAreNamed) {
  for (const auto& [file, sentence] :
       {std::pair<std::string, std::string>(
            "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n",
            "is a git-lfs pointer"),
        {std::string("PK\x03\x04\0\0\x08\x08\0\0", 10), "is a zip archive, as torch.save writes"},
        {"\x80\x02\x8a\nl\xfc", "is a pickle"},
        {"\x1f\x8b\x08", "is gzip-compressed"},
        {"{\"weight_map\": {}}", "is JSON, not safetensors"}})
    EXPECT_THAT(refusal_of(file), HasSubstr("some.file: " + sentence));
  // A header's length may begin with the same bytes.
  const std::string header = "{}" + std::string(0x8B1F - 2, ' ');
  EXPECT_EQ(refusal_of(file_with(header)), "accepted");
}

TEST(Safetensors, RefusesEveryTruncation) {
  SafetensorsImage image({{"a", DType::F32, {2}}, {"b", DType::F32, {3}}});
  const std::string file = text_of(image.bytes());
  for (std::size_t length = 0; length < file.size(); ++length)
    EXPECT_NE(refusal_of(file.substr(0, length)), "accepted") << length;
  EXPECT_NE(refusal_of(file + '\0'), "accepted");
}

/// The weights of a model, in tensors of other types too.
class WeightsFile : public testing::Test {
 protected:
  using Change = std::function<void(const std::string&, Tensor&)>;

  /// Of a type in which the f32 values are exact; `change` first.
  [[nodiscard]] std::string file_of(DType type, const Change& change = {}) const {
    std::vector<SafetensorsPlace> places;
    for (const std::string& name : names_of(model_))
      places.push_back({name, type, value_of(name).dims()});
    SafetensorsImage image(places);
    for (const SafetensorsPlace& place : places) {
      Tensor wide = value_of(place.name).clone();
      round_to(DType::BF16, wide.as<float>());  // f16 holds small bf16 as well
      for (float& number : wide.as<float>()) number = std::abs(number) < 0.01F ? 0.5F : number;
      if (change) change(place.name, wide);
      image.fill(place.name, in_type(wide, type));
    }
    return text_of(image.bytes());
  }

  static Tensor in_type(const Tensor& wide, DType type) {
    if (type == DType::F32) return wide.clone();
    if (is_narrow(type)) return narrowed(PassContext(), wide, type);
    Tensor other(type, wide.dims());
    if (type == DType::F64) std::ranges::copy(wide.as<float>(), other.as<double>().begin());
    return other;
  }

  static std::vector<std::string> names_of(const Trainer& trainer) {
    return {trainer.state().names().begin(), trainer.state().names().end()};
  }

  [[nodiscard]] const Tensor& value_of(const std::string& name) const {
    return model_.state().read(name);
  }

  /// The hash of the weights after loading, or what was wrong.
  [[nodiscard]] static std::string loaded(const std::string& path,
                                          WeightsReport* report = nullptr,
                                          bool narrow = false) {
    Trainer trainer =
        trainer_of(parse_model(testing_training::kModel), testing_training::plain_options(1, 2));
    try {
      const WeightsReport found = load_weights(trainer.state(), path, narrow);
      if (report != nullptr) *report = found;
    } catch (const Error& error) {
      return error.what();
    }
    return trainer.weights_hash();
  }

  testing_files::Folder folder_{"weights_file"};
  Trainer model_ =
      trainer_of(parse_model(testing_training::kModel), testing_training::plain_options(1, 2));
};

TEST_F(WeightsFile, OfAnotherPrecision_IsWidenedExactly) {
  const std::string exact = loaded(folder_.write("f32.safetensors", file_of(DType::F32)));
  ASSERT_EQ(exact.size(), 32U) << exact;
  for (const DType type : {DType::BF16, DType::F16}) {
    WeightsReport report;
    EXPECT_EQ(loaded(folder_.write("narrow.safetensors", file_of(type)), &report), exact);
    EXPECT_EQ(report.converted.size(), 1U);
    EXPECT_EQ(report.converted.begin()->second, 6);
  }
  const std::string wide = folder_.write("f64.safetensors", file_of(DType::F64));
  EXPECT_THAT(loaded(wide), HasSubstr("is F64, which f32 cannot hold; narrow_weights rounds it"));
  EXPECT_EQ(loaded(wide, nullptr, true), exact);
  EXPECT_THAT(loaded(folder_.write("i32.safetensors", file_of(DType::I32))),
              HasSubstr("is I32; expected F32, BF16, F16 or F64"));
}

TEST_F(WeightsFile, InfiniteValue_NamesItsTensor) {
  for (const float bad : {std::nanf(""), -std::numeric_limits<float>::infinity()})
    for (const DType type : {DType::F32, DType::BF16}) {
      const std::string file = file_of(type, [&](const std::string& name, Tensor& values) {
        if (name == "layers.2.weight") values.as<float>()[5] = bad;
      });
      EXPECT_THAT(loaded(folder_.write("bad.safetensors", file)),
                  testing::ContainsRegex("tensor 'layers.2.weight' has -?(nan|inf) at element 5"));
    }
}

TEST_F(WeightsFile, IsReadInShardsByItsIndex) {
  const std::string whole = file_of(DType::F32);
  const std::string expected = loaded(folder_.write("whole.safetensors", whole));
  const auto entries = read_safetensors(std::as_bytes(std::span(whole)), "whole");
  nlohmann::json index;
  for (const int half : {0, 1}) {
    const std::string file = "model-" + std::to_string(half) + ".safetensors";
    std::vector<SafetensorsPlace> places;
    for (std::size_t i = 0; i < entries.entries.size(); ++i)
      if (static_cast<int>(i % 2) == half)
        places.push_back({entries.entries[i].name, DType::F32, Dims(entries.entries[i].extents)});
    SafetensorsImage image(places);
    for (const SafetensorsPlace& place : places) {
      image.fill(place.name, entries.find(place.name)->tensor());
      index["weight_map"][place.name] = file;
    }
    folder_.write(file, text_of(image.bytes()));
  }
  const std::string path = folder_.write("model.safetensors.index.json", index.dump());
  EXPECT_EQ(loaded(path), expected);
  EXPECT_EQ(loaded(folder_.path()), expected);

  index["weight_map"]["layers.0.weight"] = "../model-0.safetensors";
  EXPECT_THAT(loaded(folder_.write("out.safetensors.index.json", index.dump())),
              HasSubstr("'../model-0.safetensors', which is not one beside it"));
  index["weight_map"]["layers.0.weight"] = "model-9.safetensors";
  EXPECT_THAT(loaded(folder_.write("gone.safetensors.index.json", index.dump())),
              HasSubstr("model-9.safetensors: cannot be opened"));
}

/// Names that are compared while 40,000 tensors are read: n log n, where a parser that looks at all
/// members of the header behind each of them needs n^2.
TEST(Safetensors, ComparisonsGrowWithTheNumberOfTensors) {
  const auto comparisons = [](int tensors) {
    std::string text = "{";
    for (int i = 0; i < tensors; ++i)
      text += (i > 0 ? "," : "") + entry("tensor." + std::to_string(i), "", "0,4");
    std::uint64_t count = 0;
    EXPECT_EQ(parse_strictly(text + "}", "header", &count).size(),
              static_cast<std::size_t>(tensors));
    return count;
  };
  const std::uint64_t some = comparisons(2'000), many = comparisons(40'000);
  EXPECT_GE(some, 2'000U);
  EXPECT_LE(many, 20 * some * 3 / 2);
}

}  // namespace
}  // namespace millrace
