// Reader of MNIST's IDX files: a magic number (two zero bytes, type, number of extents), big-endian
// extents, then the bytes.
#include <array>
#include <filesystem>
#include <optional>

#include "millrace/core/error.hpp"
#include "millrace/training/dataset.hpp"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr std::uint8_t kUnsignedByte = 0x08;
constexpr std::int64_t kLargestExtent = std::int64_t{1} << 31;

struct IdxFile {
  std::vector<std::int64_t> extents;
  std::vector<std::uint8_t> bytes;
  std::size_t start = 0;  // of the elements
};

std::string hex(std::uint32_t value) {
  std::string text = "0x";
  for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[(value >> shift) & 0xFU];
  return text;
}

std::uint32_t big_endian(const std::vector<std::uint8_t>& bytes, std::size_t at) {
  return (std::uint32_t{bytes[at]} << 24U) | (std::uint32_t{bytes[at + 1]} << 16U) |
         (std::uint32_t{bytes[at + 2]} << 8U) | std::uint32_t{bytes[at + 3]};
}

/// Reads the file and checks magic, extents and length; `dimensions` is what the magic must say.
IdxFile read_one(const std::string& file, std::uint32_t dimensions) {
  IdxFile idx;
  idx.bytes = read_file(file);
  idx.start = 4 + 4 * std::size_t{dimensions};
  if (idx.bytes.size() < idx.start)
    throw DataError(file + ", offset " + std::to_string(idx.bytes.size()) +
                    ": expected a header of " + std::to_string(idx.start) +
                    " bytes, found the end of the file");
  const std::uint32_t expected = (std::uint32_t{kUnsignedByte} << 8U) | dimensions;
  if (const std::uint32_t magic = big_endian(idx.bytes, 0); magic != expected)
    throw DataError(file + ", offset 0: expected the magic number " + hex(expected) + ", found " +
                    hex(magic));
  std::int64_t elements = 1;
  for (std::size_t i = 0; i < dimensions; ++i) {
    const std::size_t at = 4 + 4 * i;
    const std::int64_t extent = big_endian(idx.bytes, at);
    if (extent < 1 || __builtin_mul_overflow(elements, extent, &elements) ||
        elements > 2 * kLargestExtent)
      throw DataError(file + ", offset " + std::to_string(at) +
                      ": expected an extent of at least 1 and at most 4 GiB in all, found " +
                      std::to_string(extent));
    idx.extents.push_back(extent);
  }
  const auto promised = static_cast<std::size_t>(elements) + idx.start;
  if (idx.bytes.size() != promised)
    throw DataError(file + ", offset " + std::to_string(std::min(idx.bytes.size(), promised)) +
                    ": expected " + std::to_string(promised) + " bytes from the extents, found " +
                    std::to_string(idx.bytes.size()) +
                    (idx.bytes.size() < promised ? " (the file is truncated)" : ""));
  return idx;
}

/// The file of a pair that exists under one of its usual names.
std::optional<std::string> find_file(const std::string& folder,
                                     const std::string& stem,
                                     const std::string& kind) {
  for (const char* joint : {"-", "."})
    for (const char* end : {"", ".gz"}) {
      const fs::path path = fs::path(folder) / (stem + joint + kind + end);
      std::error_code problem;
      if (fs::exists(path, problem)) return path.string();
    }
  return std::nullopt;
}

std::string expect_file(const std::string& folder,
                        const std::string& stem,
                        const std::string& kind) {
  if (auto found = find_file(folder, stem, kind)) return *std::move(found);
  throw InvalidArgument(folder + ": expected a file " + stem + "-" + kind +
                        " (plain or with .gz), found none");
}

}  // namespace

Dataset read_samples_idx(const std::string& images_file, const std::string& labels_file) {
  const IdxFile images = read_one(images_file, 3);
  const IdxFile labels = read_one(labels_file, 1);
  const std::int64_t n = images.extents[0];
  if (labels.extents[0] != n)
    throw DataError(labels_file + ", offset 4: expected " + std::to_string(n) +
                    " labels, one per image of " + images_file + ", found " +
                    std::to_string(labels.extents[0]));
  Dataset data = make_dataset(images_file,
                              Tensor(DType::F32, {n, images.extents[1] * images.extents[2]}),
                              Tensor(DType::I32, {n}));
  const auto features = data.inputs[0].values.as<float>();
  for (std::size_t i = 0; i < features.size(); ++i)
    features[i] = static_cast<float>(images.bytes[images.start + i]) / 255.0F;
  const auto targets = data.targets[0].values.as<std::int32_t>();
  for (std::size_t i = 0; i < targets.size(); ++i) {
    targets[i] = labels.bytes[labels.start + i];
    data.classes = std::max<std::int64_t>(data.classes, targets[i] + 1);
  }
  return data;
}

TrainTest read_samples_folder(const std::string& folder, std::uint64_t seed) {
  std::error_code problem;
  if (!fs::is_directory(folder, problem))
    throw InvalidArgument(folder + ": expected a folder of IDX files, found " +
                          (fs::exists(folder, problem) ? "a file" : "nothing"));
  const std::string images = expect_file(folder, "train-images", "idx3-ubyte");
  Dataset train = read_samples_idx(images, expect_file(folder, "train-labels", "idx1-ubyte"));
  const auto test_images = find_file(folder, "t10k-images", "idx3-ubyte");
  if (!test_images) return split_by_seed(train, 0.8, seed);
  Dataset test = read_samples_idx(*test_images, expect_file(folder, "t10k-labels", "idx1-ubyte"));
  if (test.width() != train.width())
    throw DataError(*test_images + ": expected images of " + std::to_string(train.width()) +
                    " pixels as in " + images + ", found " + std::to_string(test.width()));
  train.classes = test.classes = std::max(train.classes, test.classes);
  return {std::move(train), std::move(test)};
}

}  // namespace millrace
