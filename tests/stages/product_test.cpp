// Matrix products are exact by every GEMM library; and the same bits from every
// call, for any place of the operands, in any thread, process and OpenMP setting.
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/core/random.hpp"
#include "millrace/stages/products.hpp"
#include "stages/kernels/backends.hpp"

namespace millrace {
namespace {

template <class T>
using Multiply = std::function<void(const Gemm&, const T*, const T*, T*)>;

/// Extents on both sides of every limit: of vectors, of tiles, of blocks, of the choice by shape.
constexpr std::array<std::int64_t, 9> kExtents{1, 2, 7, 8, 31, 32, 33, 96, 300};

std::vector<Gemm> products() {
  std::vector<Gemm> all;
  std::uint32_t form = 0;
  for (const std::int64_t rows : kExtents)
    for (const std::int64_t columns : kExtents)
      for (const std::int64_t depth : kExtents) {
        form = form * 5 + 3;  // all eight forms, mixed among the extents
        all.push_back({.rows = rows,
                       .columns = columns,
                       .depth = depth,
                       .a_transposed = (form >> 4U & 1U) != 0,
                       .b_transposed = (form >> 5U & 1U) != 0,
                       .accumulate = (form >> 6U & 1U) != 0});
      }
  return all;
}

/// Large enough for bf16, and for a library to share its work among threads; whole tiles and not.
std::vector<Gemm> large_products() {
  std::vector<Gemm> all;
  for (const DType factors : {DType::F32, DType::BF16})
    for (const bool a_transposed : {false, true})
      for (const bool b_transposed : {false, true}) {
        all.push_back({128, 256, 96, a_transposed, b_transposed, true, factors});
        all.push_back({77, 133, 311, a_transposed, b_transposed, false, factors});
        all.push_back({515, 200, 311, a_transposed, b_transposed, true, factors});  // in blocks
      }
  return all;
}

std::vector<Gemm> all_products() {
  std::vector<Gemm> all = products();
  for (const Gemm& product : large_products()) all.push_back(product);
  return all;
}

/// Whole numbers from -4 to 4, so that every sum is exact in f32.
template <class T>
std::vector<T> whole_numbers(std::int64_t count, std::uint64_t seed) {
  std::vector<T> values(static_cast<std::size_t>(count));
  const RandomKey key{.seed = seed};
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<T>(
        static_cast<int>(9 * random_uniform(key, static_cast<std::uint32_t>(i))) - 4);
  return values;
}

template <class T>
std::vector<T> by_definition(const Gemm& product,
                             const std::vector<T>& a,
                             const std::vector<T>& b,
                             std::vector<T> c) {
  const auto [rows, columns, depth, a_transposed, b_transposed, accumulate, factors, a_stride] =
      product;
  const auto at = [](const std::vector<T>& of, std::int64_t i) {
    return of[static_cast<std::size_t>(i)];
  };
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j) {
      T& value = c[static_cast<std::size_t>(i * columns + j)];
      if (!accumulate) value = 0;
      for (std::int64_t k = 0; k < depth; ++k)
        value += at(a, a_transposed ? k * rows + i : i * depth + k) *
                 at(b, b_transposed ? j * depth + k : k * columns + j);
    }
  return c;
}

std::string to_string(const Gemm& product) {
  return std::to_string(product.rows) + "x" + std::to_string(product.depth) +
         (product.a_transposed ? " (turned) by " : " by ") + std::to_string(product.depth) + "x" +
         std::to_string(product.columns) + (product.b_transposed ? " (turned)" : "") +
         (product.accumulate ? ", added" : "") +
         (product.factors == DType::BF16 ? ", in bf16" : "");
}

template <class T>
void expect_the_definition(const Multiply<T>& multiply) {
  for (const Gemm& product : all_products()) {
    const auto a = whole_numbers<T>(product.rows * product.depth, 1);
    const auto b = whole_numbers<T>(product.depth * product.columns, 2);
    auto c = whole_numbers<T>(product.rows * product.columns, 3);
    const auto wanted = by_definition(product, a, b, c);

    multiply(product, a.data(), b.data(), c.data());

    ASSERT_EQ(c, wanted) << to_string(product);
  }
}

TEST(Products, AreWhatTheDefinitionSays) {
  TensorPool pool;
  PassContext context;
  context.pool = &pool;
  expect_the_definition<float>([&](const Gemm& product, const float* a, const float* b, float* c) {
    multiply<float>(context, product, a, b, c);
  });
  expect_the_definition<double>(
      [&](const Gemm& product, const double* a, const double* b, double* c) {
        multiply<double>(context, product, a, b, c);
      });
}

TEST(Products, AreWhatTheDefinitionSaysByEveryLibraryAlone) {
  const PassContext context;
  expect_the_definition<float>([&](const Gemm& product, const float* a, const float* b, float* c) {
    eigen::multiply<float>(context, product, a, b, c);
  });
  if constexpr (kOneDnn)
    expect_the_definition<float>(
        [&](const Gemm& product, const float* a, const float* b, float* c) {
          onednn::multiply(context, product, a, b, c);
        });
}

TEST(Products, OfNothingLeaveNothingAndSumToNothing) {
  const PassContext context;
  std::vector<float> c{1, 2};
  multiply<float>(context, {.rows = 0, .columns = 64, .depth = 64}, nullptr, nullptr, nullptr);
  multiply<float>(context, {.rows = 64, .columns = 0, .depth = 64}, nullptr, nullptr, nullptr);
  multiply<float>(context, {.rows = 1, .columns = 2, .depth = 0}, nullptr, nullptr, c.data());
  EXPECT_EQ(c, (std::vector<float>{1, 2}));

  multiply<float>(context,
                  {.rows = 1, .columns = 2, .depth = 0, .accumulate = false},
                  nullptr,
                  nullptr,
                  c.data());
  EXPECT_EQ(c, (std::vector<float>{0, 0}));
}

TEST(Products, Bf16Operands_AreRounded) {
  const Gemm product{.rows = 64, .columns = 128, .depth = 256, .factors = DType::BF16};
  const std::vector<float> a(64 * 256, 1 + 1.0F / 512), b(256 * 128, 1);
  std::vector<float> c(64 * 128, 0);

  multiply<float>(PassContext{}, product, a.data(), b.data(), c.data());

  // 1 + 1/512 is between 1 and the next bf16, 1 + 1/128.
  bool rounds = false;
  if constexpr (kOneDnn) rounds = onednn::pays_in_bf16(product);
  EXPECT_EQ(c, std::vector<float>(c.size(), rounds ? 256.0F : 256.5F));
}

TEST(Products, Libraries_AreNamedWithVersions) {
  const std::string names = product_libraries();
  EXPECT_NE(names.find("Eigen 3.4."), std::string::npos) << names;
  EXPECT_EQ(names.find("oneDNN ") == 0, kOneDnn) << names;
}

/// Numbers whose sums round, at an offset into memory on a 64-byte boundary.
class Operand {
 public:
  Operand(std::int64_t count, std::uint64_t seed, std::size_t offset)
      : memory_(DType::F32, {count + static_cast<std::int64_t>(offset)}),
        values_(memory_.as<float>().subspan(offset)) {
    const RandomKey key{.seed = seed};
    for (std::size_t i = 0; i < values_.size(); ++i)
      values_[i] =
          static_cast<float>(random_uniform(key, static_cast<std::uint32_t>(i))) * 2.0F - 1.0F;
  }

  float* data() { return values_.data(); }
  [[nodiscard]] std::span<const float> values() const { return values_; }

 private:
  Tensor memory_;
  std::span<float> values_;
};

/// Where a, b and c begin, in elements after a boundary.
using Offsets = std::array<std::size_t, 3>;

/// FNV over the bits of c.
std::uint64_t bits_of(const Gemm& product, const Offsets& offsets) {
  Operand a(product.rows * product.depth, 1, offsets[0]);
  Operand b(product.depth * product.columns, 2, offsets[1]);
  Operand c(product.rows * product.columns, 3, offsets[2]);
  multiply<float>(PassContext{}, product, a.data(), b.data(), c.data());
  std::uint64_t digest = 14695981039346656037ULL;
  for (const float value : c.values()) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    digest = (digest ^ bits) * 1099511628211ULL;
  }
  return digest;
}

std::uint64_t bits_of_all() {
  std::uint64_t digest = 0;
  for (const Gemm& product : all_products())
    digest = digest * 1099511628211ULL ^ bits_of(product, {0, 0, 0});
  return digest;
}

TEST(ProductBits, DoNotDependOnAlignment) {
  for (const Gemm& product : all_products()) {
    const std::uint64_t aligned = bits_of(product, {0, 0, 0});
    for (const Offsets& offsets :
         {Offsets{1, 0, 0}, Offsets{0, 3, 0}, Offsets{0, 0, 5}, Offsets{15, 8, 2}})
      ASSERT_EQ(bits_of(product, offsets), aligned) << to_string(product);
  }
}

TEST(ProductBits, AreTheSameInConcurrentThreads) {
  const std::uint64_t here = bits_of_all();
  std::array<std::uint64_t, 4> there{};
  {
    std::vector<std::jthread> threads;
    for (std::uint64_t& digest : there) threads.emplace_back([&digest] { digest = bits_of_all(); });
  }
  for (const std::uint64_t digest : there) EXPECT_EQ(digest, here);
}

/// What the test below reads from the output of a process of its own.
TEST(ProductBits, AreTheSameInALaterCall) {
  const std::uint64_t first = bits_of_all();
  EXPECT_EQ(bits_of_all(), first);
  std::printf("digest of products: %016llx\n", static_cast<unsigned long long>(first));
}

std::string digest_with(const std::string& environment) {
  const std::string command = "env -u GTEST_TOTAL_SHARDS -u GTEST_SHARD_INDEX " + environment +
                              " " + std::filesystem::read_symlink("/proc/self/exe").string() +
                              " --gtest_filter=ProductBits.AreTheSameInALaterCall";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  std::array<char, 256> line{};
  while (std::fgets(line.data(), line.size(), pipe.get()) != nullptr)
    if (std::string_view(line.data()).starts_with("digest")) return line.data();
  return {};
}

TEST(ProductBits, AreTheSameInOtherProcesses) {
  const std::string plain = digest_with("");
  EXPECT_NE(plain, "");
  for (const char* environment : {"OMP_NUM_THREADS=1",
                                  "OMP_NUM_THREADS=2 OMP_DYNAMIC=false",
                                  "OMP_NUM_THREADS=4",
                                  "DNNL_DEFAULT_FPMATH_MODE=BF16"})
    EXPECT_EQ(digest_with(environment), plain) << environment;
}

}  // namespace
}  // namespace millrace
