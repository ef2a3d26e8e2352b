// The manifest: what is written is read, in the same bytes every time; whatever was changed in it
// is refused.
#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/core/random.hpp"
#include "millrace/training/checkpoint.hpp"
#include "millrace/training/state.hpp"

namespace millrace {
namespace {

using testing::HasSubstr;

Manifest example() {
  Manifest manifest;
  manifest.model = "mlp:64-10";
  manifest.optimizer = "adamw";
  manifest.data = std::string(32, 'a');
  manifest.counters = {.global_step = 7,
                       .mini_batches = 8,
                       .position = {2, 1},
                       .seed = ~std::uint64_t{0},
                       .skipped_in_a_row = 1,
                       .loss_scale = {0.1, 17},
                       .fit_global_step = 3,
                       .fit_mini_batches = 4};
  manifest.settings = {{"clip_norm", "0.1"}, {"note", "\"quoted\" \xC3\xA9"}};
  const std::string digest(32, '0');
  manifest.shards = {{"layers.0.optimizer.safetensors",
                      99,
                      digest,
                      {{"layers.0.weight", "first_moment", DType::F32, {10, 64}, digest}}},
                     {"layers.0.weights.safetensors",
                      4200,
                      digest,
                      {{"layers.0.scale", "value", DType::F32, {}, digest},
                       {"layers.0.weight", "value", DType::F32, {10, 64}, digest}}}};
  return manifest;
}

std::string refusal_of(const std::string& text) {
  try {
    (void)read_manifest(text, "m.json");
  } catch (const DataError& error) {
    return error.what();
  }
  return "accepted";
}

/// The text with its hash made right again: what somebody wrote on purpose.
std::string hashed(std::string text) {
  const std::size_t place = text.size() - 4 - 32;
  text.replace(place, 32, 32, '0');
  return text.replace(place, 32, bytes_digest(std::as_bytes(std::span(text))));
}

std::string with(const std::string& from, const std::string& to) {
  std::string text = write_manifest(example());
  const std::size_t place = text.find(from);
  EXPECT_NE(place, std::string::npos) << from;
  return hashed(text.replace(place, from.size(), to));
}

TEST(Manifest, Validation_IsReadAsWrittenAlsoInsideAnUpdate) {
  Manifest manifest = example();
  manifest.counters.validation = {.step = 8,
                                  .metric = ValidationMetric::Accuracy,
                                  .best_step = 4,
                                  .best = 0.1,
                                  .reference_step = 2,
                                  .reference = 0.7,
                                  .without_improvement = 3,
                                  .data = "some"};
  for (const std::int64_t begun : {0, 2}) {
    manifest.counters.partial.micro_batches = begun;
    const std::string text = write_manifest(manifest);
    EXPECT_EQ(read_manifest(text, "m.json"), manifest);
    EXPECT_THAT(text, HasSubstr("\"version\": 3"));
    std::string other = text;
    other.replace(other.find("\"accuracy\""), 10, "\"f1\"");
    EXPECT_THAT(refusal_of(hashed(other)), HasSubstr("has a metric that this version has not"));
  }
}

TEST(Manifest, IsReadAsItWasWritten) {
  const std::string text = write_manifest(example());
  EXPECT_EQ(read_manifest(text, "m.json"), example());
  EXPECT_EQ(write_manifest(read_manifest(text, "m.json")), text);
  EXPECT_EQ(hashed(text), text);
}

/// Inside an update, with a loss that is not finite.
Manifest unfinished() {
  Manifest manifest = example();
  manifest.counters.partial = {4, 2, 13, {-std::numeric_limits<double>::infinity(), 0.1, 5, 13}};
  manifest.shards[0].tensors[0].part = "gradient.1";
  return manifest;
}

std::string unfinished_with(const std::string& from, const std::string& to) {
  std::string text = write_manifest(unfinished());
  const std::size_t place = text.find(from);
  EXPECT_NE(place, std::string::npos) << from;
  return hashed(text.replace(place, from.size(), to));
}

TEST(Manifest, UnfinishedUpdate_HasItsOwnVersion) {
  const std::string text = write_manifest(unfinished());
  EXPECT_EQ(read_manifest(text, "m.json"), unfinished());
  EXPECT_THAT(text, HasSubstr("\"version\": 2"));
  EXPECT_THAT(write_manifest(example()), HasSubstr("\"version\": 1"));
  EXPECT_THAT(write_manifest(example()), testing::Not(HasSubstr("accumulation")));
  EXPECT_THAT(refusal_of(unfinished_with("\"version\": 2", "\"version\": 1")),
              HasSubstr("has a member that this version of the format has not"));
  EXPECT_THAT(refusal_of(with("\"version\": 1", "\"version\": 2")),
              HasSubstr("has no 'accumulation'"));
  EXPECT_THAT(refusal_of(unfinished_with("\"first\": 0", "\"first\": 1")),
              HasSubstr("accumulation does not begin with the first micro-batch"));
  EXPECT_THAT(refusal_of(unfinished_with("\"end\": 4", "\"end\": 0")), HasSubstr("holds no sums"));
  EXPECT_THAT(refusal_of(unfinished_with("\"copies\": 2", "\"copies\": 4000000000")),
              HasSubstr("holds no sums"));
  EXPECT_THAT(refusal_of(unfinished_with("\"-inf\"", "\"-infinity\"")),
              HasSubstr("has a 'loss' that is no number"));
}

TEST(Manifest, RefusesEveryByteThatIsAnother) {
  const std::string text = write_manifest(example());
  for (std::size_t i = 0; i < text.size(); ++i)
    for (const int flip : {1, 0x20, 0x80}) {
      std::string other = text;
      other[i] = static_cast<char>(other[i] ^ flip);
      EXPECT_NE(refusal_of(other), "accepted") << i << " ^ " << flip;
    }
  for (std::size_t length = 0; length < text.size(); ++length)
    EXPECT_NE(refusal_of(text.substr(0, length)), "accepted") << length;
  EXPECT_NE(refusal_of(text + "\n"), "accepted");
}

TEST(Manifest, UnknownField_IsRejectedDespiteRightHash) {
  EXPECT_THAT(refusal_of(with("\"version\": 1", "\"version\": 4")),
              HasSubstr("m.json: is of version 4 of the format; this program reads up to 3"));
  EXPECT_THAT(refusal_of(with("millrace checkpoint", "another checkpoint")),
              HasSubstr("is no manifest"));
  EXPECT_THAT(refusal_of(with("\"model\"", "\"modem\"")), HasSubstr("has no 'model'"));
  EXPECT_THAT(refusal_of(with("\"model\"", "\"more\": 1, \"model\"")),
              HasSubstr("has a member that this version of the format has not"));
  EXPECT_THAT(refusal_of(with("\"model\"", "\"data\": \"\", \"model\"")),
              HasSubstr("names 'data' twice"));
  EXPECT_THAT(refusal_of(with("\"global_step\": 7", "\"global_step\": -7")),
              HasSubstr("'global_step' that is not a whole number"));
  EXPECT_THAT(refusal_of(with("\"global_step\": 7", "\"global_step\": 18446744073709551615")),
              HasSubstr("'global_step' that is too large"));
  EXPECT_THAT(refusal_of(with("\"F32\"", "\"BOOL\"")), HasSubstr("dtype that cannot be held"));
  EXPECT_THAT(refusal_of(with("   64", "   4611686018427387904")), HasSubstr("an extent"));
}

TEST(Manifest, RefusesFilesThatAreNotInTheFolder) {
  const std::string file = "layers.0.weights.safetensors";
  for (const std::string other : {"../weights.safetensors",
                                  "/etc/weights.safetensors",
                                  "a/b.safetensors",
                                  ".hidden.safetensors",
                                  "weights.bin",
                                  ".safetensors",
                                  "a\\u0000b.safetensors",
                                  "a b.safetensors",
                                  ""})
    EXPECT_THAT(refusal_of(with(file, other)), HasSubstr("a file name that no shard has")) << other;
  EXPECT_THAT(refusal_of(with(file, "layers.0.optimizer.safetensors")), HasSubstr("twice"));
  EXPECT_THAT(refusal_of(with("layers.0.scale", "layers.0.weight")),
              HasSubstr("names the value of 'layers.0.weight' twice"));
}

}  // namespace
}  // namespace millrace
