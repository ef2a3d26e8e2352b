// Gathering rows into the micro-batches of a mini-batch.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "millrace/core/error.hpp"
#include "millrace/training/dataset.hpp"
#include "millrace/training/loader.hpp"
#include "training/readable_file.hpp"

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
  tensor = Tensor::uninitialised(dtype, dims);
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

/// Numbers of the bytes [first, first + count) of a text.
void number(const SampleTensor& from,
            std::int64_t first,
            std::int64_t count,
            const Vocabulary& vocabulary,
            std::int32_t* to) {
  const auto take = [&](std::span<const std::uint8_t> bytes) {
    for (const std::uint8_t byte : bytes) *to++ = vocabulary.ids()[byte];
  };
  if (!from.values) return read_pieces(from.range, first, count, take);
  take(from.values.as<std::uint8_t>().subspan(static_cast<std::size_t>(first),
                                              static_cast<std::size_t>(count)));
}

/// Elements [first, first + count) of each of the windows, by number.
void copy_windows(Tensor& to,
                  const SampleTensor& from,
                  const Dataset::Windows& windows,
                  std::span<const std::int32_t> rows,
                  std::int64_t first,
                  std::int64_t count) {
  std::int32_t* target = to.as<std::int32_t>().data();
  for (const std::int32_t row : rows) {
    number(from, row * windows.stride + first, count, *windows.vocabulary, target);
    target += count;
  }
}

/// Fills what is left of a row of `positions`.
template <class T>
void pad(T* row, std::int64_t from, std::int64_t positions) {
  std::fill(row + from, row + positions, T(0));
}

/// Every document's own elements by number, then 0, in rows of `positions`.
void copy_documents(Tensor& to,
                    const SampleTensor& from,
                    const Dataset::Windows& windows,
                    std::span<const std::int32_t> rows,
                    std::int64_t positions) {
  std::int32_t* target = to.as<std::int32_t>().data();
  for (const std::int32_t row : rows) {
    const Dataset::Document& document = (*windows.documents)[static_cast<std::size_t>(row)];
    number(from, document.first, document.positions, *windows.vocabulary, target);
    pad(target, document.positions, positions);
    target += positions;
  }
}

/// 1 for every element of a document, then 0.
void weigh_documents(Tensor& to,
                     const Dataset::Windows& windows,
                     std::span<const std::int32_t> rows,
                     std::int64_t positions) {
  float* weight = to.as<float>().data();
  for (const std::int32_t row : rows) {
    const std::int64_t count = (*windows.documents)[static_cast<std::size_t>(row)].positions;
    std::fill(weight, weight + count, 1.0F);
    pad(weight, count, positions);
    weight += positions;
  }
}

/// The positions of the longest, at least 1.
std::int64_t longest(const Dataset::Windows& windows, std::span<const std::int32_t> rows) {
  std::int64_t most = 1;
  for (const std::int32_t row : rows)
    most = std::max(most, (*windows.documents)[static_cast<std::size_t>(row)].positions);
  return most;
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
    require(!data.has_documents(), [&] {
      return "samples of " + data.name + " are documents of different lengths, which are not cut " +
             "into slices; got " + std::to_string(slices) + ", 1 is allowed";
    });
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
      copy_windows(to[slice][i], from[i], windows, rows, first, count);
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

/// Flat, with room for the longest that may come, so that memory is asked for once.
void Batch::gather_documents(Part& part,
                             const Dataset& data,
                             std::span<const std::int32_t> rows) const {
  const Dataset::Windows& windows = data.windows;
  const std::int64_t room =
      std::max<std::int64_t>(static_cast<std::int64_t>(rows.size()), 1) * windows.positions;
  part.positions = longest(windows, rows);
  part.inputs.resize(1);
  part.targets.resize(1);
  const auto gather_all = [&](std::vector<Tensor>& to, const std::vector<SampleTensor>& from) {
    for (std::size_t i = 0; i < from.size(); ++i) {
      make_room(to[i], DType::I32, {room}, room);
      copy_documents(to[i], from[i], windows, rows, part.positions);
    }
  };
  part.inputs[0].resize(data.inputs.size());
  gather_all(part.inputs[0], data.inputs);
  part.targets[0].resize(data.targets.size() + 1);
  gather_all(part.targets[0], data.targets);
  make_room(part.targets[0].back(), DType::F32, {room}, room);
  weigh_documents(part.targets[0].back(), windows, rows, part.positions);
}

void Batch::fill_part(Part& part, const Dataset& data, std::span<const std::int32_t> rows) const {
  if (of_documents_) return gather_documents(part, data, rows);
  part.positions = data.positions();
  gather(part.inputs, data.inputs, data.windows, rows);
  gather(part.targets, data.targets, data.windows, rows);
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
  of_documents_ = data.has_documents();
  std::vector<std::int32_t> sorted;
  if (of_documents_) {
    sorted = longest_first(data, rows);
    rows = sorted;
  }
  parts_.resize(sizes.size());
  samples_ = static_cast<std::int64_t>(rows.size());
  std::int64_t first = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    Part& part = parts_[i];
    part.first = first;
    part.count = sizes[i];
    fill_part(part,
              data,
              rows.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(part.count)));
    first += part.count;
  }
}

std::int64_t Batch::positions() const {
  std::int64_t sum = 0;
  for (const Part& part : parts_) sum += part.count * part.positions;
  return sum;
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

TensorList Batch::borrow(std::vector<Tensor>& tensors, const Part& part) const {
  TensorList list;
  for (Tensor& tensor : tensors) {
    Tensor rows = tensor.borrow_rows(0, of_documents_ ? part.count * part.positions : part.count);
    if (of_documents_) rows.reshape({part.count, part.positions});
    list.push_back(std::move(rows));
  }
  return list;
}

TensorList Batch::inputs(const Unit& unit) {
  Part& wanted = part(unit);
  return borrow(wanted.inputs[unit.slice.index()], wanted);
}

TensorList Batch::targets(const Unit& unit) {
  Part& wanted = part(unit);
  return borrow(wanted.targets[unit.slice.index()], wanted);
}

std::int64_t Batch::first_sample(const Unit& unit) const {
  return parts_.at(unit.micro_batch.index()).first;
}

bool Batch::is_empty(const Unit& unit) const {
  return parts_.at(unit.micro_batch.index()).count == 0;
}

std::int64_t Batch::first_position(const Unit& unit) const {
  return positions_.at(unit.slice.index()).first;
}

}  // namespace millrace
