// Gathering rows into the micro-batches of a mini-batch.
#include "millrace/training/batch.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "millrace/core/error.hpp"

namespace millrace {
namespace {

bool has_rows_like(const Tensor& tensor, const Tensor& source) {
  return tensor && tensor.dtype() == source.dtype() &&
         std::equal(tensor.dims().begin() + 1,
                    tensor.dims().end(),
                    source.dims().begin() + 1,
                    source.dims().end());
}

/// Makes `tensor` hold at least `rows` rows like those of `source`, or nothing if that is nothing.
void make_room(Tensor& tensor, const Tensor& source, std::int64_t rows) {
  if (!source) tensor = Tensor();
  if (!source || (has_rows_like(tensor, source) && tensor.rows() >= rows)) return;
  Dims dims = source.dims();
  *dims.begin() = std::max<std::int64_t>(rows, 1);
  tensor = Tensor(source.dtype(), dims);
}

void copy_rows(Tensor& to, const Tensor& from, std::span<const std::int32_t> rows) {
  if (rows.empty() || !from) return;
  const std::size_t row_bytes = from.bytes() / static_cast<std::size_t>(from.rows());
  auto* target = static_cast<std::byte*>(to.data());
  const auto* source = static_cast<const std::byte*>(from.data());
  for (const std::int32_t row : rows) {
    std::memcpy(target, source + static_cast<std::size_t>(row) * row_bytes, row_bytes);
    target += row_bytes;
  }
}

}  // namespace

std::vector<std::int64_t> micro_batch_sizes(std::int64_t n, int micro_batches) {
  require(micro_batches >= 1,
          "the number of micro-batches must be at least 1, got " + std::to_string(micro_batches));
  require(n >= 0, "a mini-batch must have at least 0 samples, got " + std::to_string(n));
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(micro_batches), n / micro_batches);
  for (std::size_t i = 0; i < static_cast<std::size_t>(n % micro_batches); ++i) ++sizes[i];
  return sizes;
}

Batch::Batch(const Dataset& data, int micro_batches) {
  std::vector<std::int32_t> rows(static_cast<std::size_t>(data.size()));
  std::iota(rows.begin(), rows.end(), 0);
  fill(data, rows, micro_batches);
}

void Batch::fill(const Dataset& data, std::span<const std::int32_t> rows, int micro_batches) {
  const auto sizes = micro_batch_sizes(static_cast<std::int64_t>(rows.size()), micro_batches);
  for (const std::int32_t row : rows)
    require(row >= 0 && row < data.size(),
            "row " + std::to_string(row) + " of " + data.name + " is outside 0.." +
                std::to_string(data.size() - 1));
  require(!data.targets || data.targets.rows() == data.size(), [&] {
    return data.name + " has " + std::to_string(data.size()) + " samples, but targets for " +
           std::to_string(data.targets.rows());
  });
  parts_.resize(sizes.size());
  samples_ = static_cast<std::int64_t>(rows.size());
  std::int64_t first = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    Part& part = parts_[i];
    part.first = first;
    part.count = sizes[i];
    make_room(part.features, data.features, part.count);
    make_room(part.targets, data.targets, part.count);
    const auto of_part =
        rows.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(part.count));
    copy_rows(part.features, data.features, of_part);
    copy_rows(part.targets, data.targets, of_part);
    first += part.count;
  }
}

Batch::Part& Batch::part(const Unit& unit) {
  require(unit.micro_batch.value >= 0 && unit.micro_batch.index() < parts_.size(),
          "micro-batch " + std::to_string(unit.micro_batch.value) + " is outside 0.." +
              std::to_string(micro_batches() - 1));
  require(unit.slice.value == 0,
          "a batch of samples has one slice, got slice " + std::to_string(unit.slice.value));
  return parts_[unit.micro_batch.index()];
}

TensorList Batch::inputs(const Unit& unit) {
  Part& wanted = part(unit);
  return TensorList(wanted.features.borrow_rows(0, wanted.count));
}

TensorList Batch::targets(const Unit& unit) {
  Part& wanted = part(unit);
  return wanted.targets ? TensorList(wanted.targets.borrow_rows(0, wanted.count)) : TensorList();
}

std::int64_t Batch::first_sample(const Unit& unit) const {
  return parts_.at(unit.micro_batch.index()).first;
}

}  // namespace millrace
