// Gathering rows into the micro-batches of a mini-batch.
#include "millrace/training/batch.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "millrace/core/error.hpp"
#include "millrace/training/text.hpp"

namespace millrace {
namespace {

bool has_rows_like(const Tensor& tensor, DType dtype, const Dims& dims) {
  return tensor && tensor.dtype() == dtype &&
         std::equal(tensor.dims().begin() + 1, tensor.dims().end(), dims.begin() + 1, dims.end());
}

/// Makes `tensor` hold at least `rows` rows like those of `source`, whose extents are `dims`.
void make_room(Tensor& tensor, DType dtype, Dims dims, std::int64_t rows) {
  *dims.begin() = std::max<std::int64_t>(rows, 1);
  if (has_rows_like(tensor, dtype, dims) && tensor.rows() >= rows) return;
  tensor = Tensor(dtype, dims);
}

/// Bytes [first, first + count) of each of the rows.
void copy_rows(Tensor& to,
               const Tensor& from,
               std::span<const std::int32_t> rows,
               std::size_t first,
               std::size_t count) {
  if (rows.empty()) return;
  const std::size_t row_bytes = from.bytes() / static_cast<std::size_t>(from.rows());
  auto* target = static_cast<std::byte*>(to.data());
  const auto* source = static_cast<const std::byte*>(from.data()) + first;
  for (const std::int32_t row : rows) {
    std::memcpy(target, source + static_cast<std::size_t>(row) * row_bytes, count);
    target += count;
  }
}

/// Elements [first, first + count) of each of the windows, by number.
void copy_windows(Tensor& to,
                  const Tensor& from,
                  const Dataset::Windows& windows,
                  std::span<const std::int32_t> rows,
                  std::size_t first,
                  std::size_t count) {
  const auto text = from.as<std::uint8_t>();
  std::int32_t* target = to.as<std::int32_t>().data();
  for (const std::int32_t row : rows) {
    const std::size_t start =
        static_cast<std::size_t>(row) * static_cast<std::size_t>(windows.stride) + first;
    for (const std::uint8_t byte : text.subspan(start, count))
      *target++ = windows.vocabulary->ids()[byte];
  }
}

TensorList borrow(std::vector<Tensor>& tensors, std::int64_t rows) {
  TensorList list;
  for (Tensor& tensor : tensors) list.push_back(tensor.borrow_rows(0, rows));
  return list;
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

std::vector<UnitSize> unit_sizes(std::int64_t n,
                                 std::int64_t positions,
                                 int micro_batches,
                                 int slices) {
  std::vector<UnitSize> sizes;
  for (const std::int64_t samples : micro_batch_sizes(n, micro_batches))
    for (const std::int64_t count : micro_batch_sizes(positions, slices))
      sizes.push_back({samples, count});
  return sizes;
}

Batch::Batch(const Dataset& data, int micro_batches, int slices) {
  std::vector<std::int32_t> rows(static_cast<std::size_t>(data.size()));
  std::iota(rows.begin(), rows.end(), 0);
  fill(data, rows, micro_batches, slices);
}

/// Which positions are whose.
void Batch::cut_positions(const Dataset& data, int slices) {
  require(slices >= 1, "the number of slices must be at least 1, got " + std::to_string(slices));
  const std::int64_t positions = data.positions();
  if (slices > 1) {
    require(positions >= slices, [&] {
      return "samples of " + data.name + " have " + std::to_string(positions) +
             (positions == 1 ? " position" : " positions") + ", which cannot be cut into " +
             std::to_string(slices) + " slices";
    });
    for (const SampleTensor& target : data.targets)
      require(target.sequence || data.windows.positions > 0, [&] {
        return data.name + ": '" + target.name +
               "' is no sequence, so the loss of a slice has nothing to compare with";
      });
  }
  positions_.clear();
  std::int64_t first = 0;
  for (const std::int64_t count : micro_batch_sizes(positions, slices)) {
    positions_.push_back({first, count});
    first += count;
  }
}

void Batch::gather_windows(std::vector<std::vector<Tensor>>& to,
                           const std::vector<SampleTensor>& from,
                           const Dataset::Windows& windows,
                           std::span<const std::int32_t> rows) const {
  to.resize(positions_.size());
  for (std::size_t slice = 0; slice < positions_.size(); ++slice) {
    to[slice].resize(from.size());
    const auto [first, count] = positions_[slice];
    for (std::size_t i = 0; i < from.size(); ++i) {
      make_room(to[slice][i], DType::I32, {0, count}, static_cast<std::int64_t>(rows.size()));
      copy_windows(to[slice][i],
                   from[i].values,
                   windows,
                   rows,
                   static_cast<std::size_t>(first),
                   static_cast<std::size_t>(count));
    }
  }
}

void Batch::gather(std::vector<std::vector<Tensor>>& to,
                   const std::vector<SampleTensor>& from,
                   const Dataset::Windows& windows,
                   std::span<const std::int32_t> rows) const {
  if (windows.positions > 0) return gather_windows(to, from, windows, rows);
  to.resize(positions_.size());
  for (std::size_t slice = 0; slice < positions_.size(); ++slice) {
    to[slice].resize(from.size());
    for (std::size_t i = 0; i < from.size(); ++i) {
      const Tensor& all = from[i].values;
      Dims dims = all.dims();
      const std::size_t row =
          all.rows() == 0 ? 0 : all.bytes() / static_cast<std::size_t>(all.rows());
      std::size_t first = 0;
      std::size_t count = row;
      if (from[i].sequence) {
        const std::size_t position =
            row / static_cast<std::size_t>(std::max<std::int64_t>(dims[1], 1));
        *(dims.begin() + 1) = positions_[slice].count;
        first = static_cast<std::size_t>(positions_[slice].first) * position;
        count = static_cast<std::size_t>(positions_[slice].count) * position;
      }
      make_room(to[slice][i], all.dtype(), dims, static_cast<std::int64_t>(rows.size()));
      copy_rows(to[slice][i], all, rows, first, count);
    }
  }
}

void Batch::fill(const Dataset& data,
                 std::span<const std::int32_t> rows,
                 int micro_batches,
                 int slices) {
  const auto sizes = micro_batch_sizes(static_cast<std::int64_t>(rows.size()), micro_batches);
  for (const std::int32_t row : rows)
    require(row >= 0 && row < data.size(),
            "row " + std::to_string(row) + " of " + data.name + " is outside 0.." +
                std::to_string(data.size() - 1));
  check_rows(data);
  cut_positions(data, slices);
  parts_.resize(sizes.size());
  samples_ = static_cast<std::int64_t>(rows.size());
  std::int64_t first = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    Part& part = parts_[i];
    part.first = first;
    part.count = sizes[i];
    const auto of_part =
        rows.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(part.count));
    gather(part.inputs, data.inputs, data.windows, of_part);
    gather(part.targets, data.targets, data.windows, of_part);
    first += part.count;
  }
}

Batch::Part& Batch::part(const Unit& unit) {
  require(unit.micro_batch.value >= 0 && unit.micro_batch.index() < parts_.size(),
          "micro-batch " + std::to_string(unit.micro_batch.value) + " is outside 0.." +
              std::to_string(micro_batches() - 1));
  require(unit.slice.value >= 0 && unit.slice.value < slices(), [&] {
    return "slice " + std::to_string(unit.slice.value) + " is outside 0.." +
           std::to_string(slices() - 1) + ": the mini-batch was cut into " +
           std::to_string(slices());
  });
  return parts_[unit.micro_batch.index()];
}

TensorList Batch::inputs(const Unit& unit) {
  Part& wanted = part(unit);
  return borrow(wanted.inputs[unit.slice.index()], wanted.count);
}

TensorList Batch::targets(const Unit& unit) {
  Part& wanted = part(unit);
  return borrow(wanted.targets[unit.slice.index()], wanted.count);
}

std::int64_t Batch::first_sample(const Unit& unit) const {
  return parts_.at(unit.micro_batch.index()).first;
}

std::int64_t Batch::first_position(const Unit& unit) const {
  return positions_.at(unit.slice.index()).first;
}

}  // namespace millrace
