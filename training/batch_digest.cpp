// Hashes through xxhash compiled into this file, and a comparison by sums alone.
#include "training/batch_digest.hpp"

#include <algorithm>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace millrace {
namespace {

// A number in pieces of 16 bits: sums over less than 2^16 processes are exact in a double, and
// their products in 64 bits.
constexpr unsigned kPieces = 4;
constexpr unsigned kPieceBits = 16;
constexpr std::size_t kOfNumber = 1 + 2 * kPieces;
static_assert(2 * kOfNumber == BatchDigest::kValues);

std::uint64_t hashed(const void* data, std::size_t bytes, std::uint64_t before) {
  return XXH3_64bits_withSeed(data, bytes, before);
}

/// One, the pieces and their squares; zeros for no number.
void put_equality(double* values, std::optional<std::uint64_t> number) {
  std::fill_n(values, kOfNumber, 0.0);
  if (!number) return;
  values[0] = 1;
  for (unsigned i = 0; i < kPieces; ++i) {
    const auto piece = static_cast<double>((*number >> (i * kPieceBits)) & 0xFFFFU);
    values[1 + i] = piece;
    values[1 + kPieces + i] = piece * piece;
  }
}

/// n numbers are equal where n times the sum of their squares is the square of their sum, and only
/// there.
bool are_equal(const double* sums) {
  const auto whole = [&](unsigned i) { return static_cast<std::uint64_t>(sums[i]); };
  for (unsigned i = 1; i <= kPieces; ++i)
    if (whole(0) * whole(i + kPieces) != whole(i) * whole(i)) return false;
  return true;
}

}  // namespace

void BatchDigest::begin(StepData& batch, int micro_batches, int slices) {
  batch_ = &batch;
  slices_ = static_cast<std::size_t>(slices);
  for (Digests* digests : {&inputs_, &targets_})
    digests->assign(static_cast<std::size_t>(micro_batches) * slices_, UnitDigest());
}

BatchDigest::UnitDigest BatchDigest::digest_of(const TensorList& tensors) {
  UnitDigest digest{tensors.size(), Found::Nothing};
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = tensors[i];
    std::array<std::int64_t, Dims::kMax + 2> shape{};
    shape[0] = static_cast<std::int64_t>(tensor.dtype());
    shape[1] = static_cast<std::int64_t>(tensor.dims().size());
    std::copy(tensor.dims().begin(), tensor.dims().end(), shape.begin() + 2);
    digest.hash = hashed(shape.data(), sizeof shape, digest.hash);
    digest.hash = hashed(tensor.data(), tensor.bytes(), digest.hash);
    if (tensor.bytes() > 0 && digest.found == Found::Nothing) digest.found = Found::Bytes;
    if (tensor.bytes() == 0 && tensor.rows() > 0) digest.found = Found::NoBytes;
  }
  if (tensors.empty()) digest.found = Found::NoBytes;
  return digest;
}

/// Units without samples are part of it where others have bytes.
std::optional<std::uint64_t> BatchDigest::digest(const Digests& units) {
  std::uint64_t all = 0;
  bool has_bytes = false;
  for (const UnitDigest& unit : units) {
    if (unit.found != Found::Bytes && unit.found != Found::Nothing) return std::nullopt;
    has_bytes = has_bytes || unit.found == Found::Bytes;
    all = hashed(&unit.hash, sizeof unit.hash, all);
  }
  if (!has_bytes) return std::nullopt;
  return all;
}

TensorList BatchDigest::seen(Digests& digests, const Unit& unit, TensorList tensors) const {
  digests.at(unit.micro_batch.index() * slices_ + unit.slice.index()) = digest_of(tensors);
  return tensors;
}

void BatchDigest::take_rest(ProcessGroup& group) try {
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    const Unit unit{MicroBatch{static_cast<int>(i / slices_)},
                    Slice{static_cast<int>(i % slices_)}};
    if (inputs_[i].found == Found::NotTaken) static_cast<void>(inputs(unit));
    if (targets_[i].found == Found::NotTaken) static_cast<void>(targets(unit));
  }
} catch (const std::exception& error) {
  group.cancel(error.what());
  throw;
}

void BatchDigest::put(std::span<double, kValues> values) const {
  put_equality(values.data(), of_inputs());
  put_equality(values.data() + kOfNumber, of_targets());
}

bool BatchDigest::is_same(std::span<const double, kValues> sums) {
  return are_equal(sums.data()) && are_equal(sums.data() + kOfNumber);
}

}  // namespace millrace
