// Permutations, splits and the names of data sets.
#include "millrace/training/dataset.hpp"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <limits>
#include <map>
#include <numeric>

#include "core/names.hpp"
#include "millrace/core/error.hpp"
#include "millrace/core/random.hpp"
#include "millrace/training/state.hpp"
#include "training/readable_file.hpp"

namespace millrace {
namespace {

constexpr Names<Lengths, 2> kLengths = {"lengths",
                                        {{{"fixed", Lengths::Fixed}, {"bucket", Lengths::Bucket}}}};
constexpr std::string_view kCsv = "csv:", kText = "text:", kBytes = ",bytes";

/// The file of "text:FILE[,bytes]".
std::string text_file(std::string_view name) {
  if (name.ends_with(kBytes)) name.remove_suffix(kBytes.size());
  return std::string(name.substr(kText.size()));
}

std::vector<std::int32_t> permutation(std::int64_t n, const RandomKey& key) {
  require(n >= 0 && n <= std::numeric_limits<std::int32_t>::max(),
          "a data set has at most 2^31 - 1 samples, got " + std::to_string(n));
  std::vector<std::int32_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size(); i > 1; --i) {
    const auto bound = static_cast<std::uint32_t>(i);
    std::swap(order[i - 1], order[random_below(key, bound, bound)]);
  }
  return order;
}

Tensor gather(const Tensor& all, const std::vector<std::int32_t>& rows) {
  if (!all) return {};
  Dims dims = all.dims();
  *dims.begin() = static_cast<std::int64_t>(rows.size());
  Tensor part(all.dtype(), dims);
  if (rows.empty()) return part;
  const std::size_t row_bytes = part.bytes() / rows.size();
  auto* to = static_cast<std::byte*>(part.data());
  const auto* from = static_cast<const std::byte*>(all.data());
  for (const std::int32_t row : rows) {
    require(row >= 0 && row < all.rows(),
            "row " + std::to_string(row) + " is outside 0.." + std::to_string(all.rows() - 1));
    std::memcpy(to, from + static_cast<std::size_t>(row) * row_bytes, row_bytes);
    to += row_bytes;
  }
  return part;
}

/// Rows [first, first + count) of all tensors, copied; of a file none are.
Dataset part_of(const Dataset& all, std::int64_t first, std::int64_t count) {
  const auto rows_of = [&](const SampleTensor& tensor) {
    SampleTensor part{tensor.name, {}, tensor.sequence, tensor.range};
    part.range.first += first;
    part.range.size = count;
    if (!tensor.values) return part;
    Dims dims = tensor.values.dims();
    *dims.begin() = count;
    part.values = Tensor(tensor.values.dtype(), dims);
    const std::size_t row = tensor.values.bytes() / static_cast<std::size_t>(tensor.rows());
    const auto* from = static_cast<const std::byte*>(tensor.values.data());
    std::memcpy(
        part.values.data(), from + static_cast<std::size_t>(first) * row, part.values.bytes());
    return part;
  };
  Dataset part{all.name, {}, {}, all.classes, all.windows, all.divisor};
  for (const SampleTensor& tensor : all.inputs) part.inputs.push_back(rows_of(tensor));
  for (const SampleTensor& tensor : all.targets) part.targets.push_back(rows_of(tensor));
  return part;
}

/// Gives the last `held` documents to the test part, whose text begins with the first of them.
void split_documents(std::vector<Dataset::Document> all, std::int64_t held, TrainTest& parts) {
  std::vector<Dataset::Document> last(all.end() - held, all.end());
  all.resize(all.size() - last.size());
  const std::int64_t first = last.front().first;
  for (Dataset::Document& document : last) document.first -= first;
  const auto shared = [](std::vector<Dataset::Document>& documents) {
    return std::make_shared<const std::vector<Dataset::Document>>(std::move(documents));
  };
  parts.train.windows.documents = shared(all);
  parts.test.windows.documents = shared(last);
}

}  // namespace

std::string_view name_of(Lengths lengths) {
  return kLengths.of(lengths);
}

Lengths lengths_called(std::string_view name) {
  return kLengths.value(name);
}

std::int64_t Dataset::size() const {
  if (has_documents()) return static_cast<std::int64_t>(windows.documents->size());
  if (inputs.empty()) return 0;
  const std::int64_t rows = inputs[0].rows();
  if (windows.positions == 0) return rows;
  return rows < windows.positions ? 0 : (rows - windows.positions) / windows.stride + 1;
}

std::int64_t Dataset::epoch_size() const {
  return overlaps() ? inputs[0].rows() / windows.positions : size();
}

std::int64_t Dataset::width() const {
  if (windows.positions > 0) return windows.positions;
  return inputs.empty() || !inputs[0].values ? 0 : inputs[0].values.columns();
}

std::int64_t Dataset::positions() const {
  if (windows.positions > 0) return windows.positions;
  const SampleTensor* first = nullptr;
  for (const auto* list : {&inputs, &targets})
    for (const SampleTensor& tensor : *list) {
      if (!tensor.sequence) continue;
      require(tensor.values.dims().size() >= 2, [&] {
        return name + ": the sequence '" + tensor.name + "' must be [samples, positions, ...]";
      });
      if (first == nullptr) first = &tensor;
      require(tensor.values.dims()[1] == first->values.dims()[1], [&] {
        return name + ": '" + first->name + "' has " + std::to_string(first->values.dims()[1]) +
               " positions, '" + tensor.name + "' " + std::to_string(tensor.values.dims()[1]);
      });
    }
  return first == nullptr ? 1 : first->values.dims()[1];
}

Dataset make_dataset(std::string name, Tensor features, Tensor targets, std::int64_t classes) {
  Dataset data;
  data.name = std::move(name);
  data.inputs.push_back({"features", std::move(features)});
  if (targets) data.targets.push_back({"targets", std::move(targets)});
  data.classes = classes;
  return data;
}

std::string contents_digest(const Dataset& data) {
  if (data.width() == 0) return {};
  const std::string windows = data.windows.positions == 0
                                  ? std::string()
                                  : (data.has_documents() ? " in lines of " : " in windows of ") +
                                        std::to_string(data.windows.positions) + " by " +
                                        std::to_string(data.windows.stride) + " of " +
                                        std::to_string(data.classes);
  std::map<std::string, std::string> digests;
  for (const auto* list : {&data.inputs, &data.targets})
    for (const SampleTensor& tensor : *list)
      digests[std::to_string(digests.size() + 1) + " " + tensor.name + windows] =
          tensor.values ? tensor_digest(tensor.values) : digest_of(tensor.range);
  return combine_digests(digests);
}

void check_rows(const Dataset& data) {
  for (const auto* list : {&data.inputs, &data.targets})
    for (const SampleTensor& tensor : *list)
      require((tensor.values || tensor.range.file) && tensor.rows() == data.inputs[0].rows(), [&] {
        return data.name + " has " + std::to_string(data.inputs[0].rows()) +
               (data.windows.positions > 0 ? " positions, but '" : " samples, but '") +
               tensor.name + "' for " + std::to_string(tensor.rows());
      });
}

std::vector<std::int32_t> shuffled_order(std::int64_t n, std::uint64_t seed, std::uint64_t epoch) {
  return permutation(n, {.seed = seed, .purpose = Purpose::Shuffle, .step = epoch});
}

std::vector<std::int32_t> longest_first(const Dataset& data, std::span<const std::int32_t> rows) {
  std::vector<std::int32_t> sorted(rows.begin(), rows.end());
  const std::vector<Dataset::Document>& documents = *data.windows.documents;
  std::ranges::stable_sort(sorted, std::ranges::greater(), [&](std::int32_t row) {
    return documents.at(static_cast<std::size_t>(row)).positions;
  });
  return sorted;
}

std::vector<std::int32_t> drawn_windows(const Dataset& data,
                                        std::int64_t count,
                                        std::uint64_t seed,
                                        std::uint64_t number) {
  const RandomKey key{.seed = seed, .purpose = Purpose::Window, .step = number};
  const auto bound = static_cast<std::uint32_t>(data.size());
  std::vector<std::int32_t> rows(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < rows.size(); ++i)
    rows[i] = static_cast<std::int32_t>(random_below(key, static_cast<std::uint32_t>(i), bound));
  return rows;
}

Dataset select_rows(const Dataset& data, const std::vector<std::int32_t>& rows) {
  require(data.windows.positions == 0, data.name + " has windows, not rows to select");
  const auto gathered = [&](const std::vector<SampleTensor>& all) {
    std::vector<SampleTensor> parts;
    for (const SampleTensor& tensor : all)
      parts.push_back({tensor.name, gather(tensor.values, rows), tensor.sequence});
    return parts;
  };
  return {data.name, gathered(data.inputs), gathered(data.targets), data.classes, {}, data.divisor};
}

TrainTest split_by_seed(const Dataset& data, double train_share, std::uint64_t seed) {
  require(train_share > 0 && train_share < 1,
          "the training share must be above 0 and below 1, got " + std::to_string(train_share));
  require(data.size() >= 2,
          data.name + " must have at least 2 samples to be split, found " +
              std::to_string(data.size()));
  const auto order = permutation(data.size(), {.seed = seed, .purpose = Purpose::Split});
  const auto wanted = static_cast<std::int64_t>(static_cast<double>(data.size()) * train_share);
  const auto cut = order.begin() + std::clamp<std::int64_t>(wanted, 1, data.size() - 1);
  return {select_rows(data, {order.begin(), cut}), select_rows(data, {cut, order.end()})};
}

TrainTest hold_out(const Dataset& data, double share) {
  const bool is_text = data.windows.positions > 0 && !data.has_documents();
  const std::int64_t rows = data.inputs.at(0).rows();
  const std::int64_t all = data.has_documents() ? data.size() : rows;
  const std::int64_t least = is_text ? data.windows.positions : 1;
  const std::int64_t between = is_text ? 1 : 0;  // read by the last window, never trained
  require(share > 0 && share < 1,
          named("validation") + fmt::format(" {}: must be above 0 and below 1", share));
  require(all >= 2 * least + between, [&] {
    const char* what = is_text ? "positions" : "samples";
    return fmt::format("{} has {} {}, too few to hold out {} of them", data.name, all, what, least);
  });
  const auto wanted = static_cast<std::int64_t>(static_cast<double>(all) * share);
  const std::int64_t held = std::clamp(wanted, least, all - least - between);
  const std::int64_t cut =
      data.has_documents() ? data.windows.documents->end()[-held].first : all - held;
  TrainTest parts{part_of(data, 0, cut - between), part_of(data, cut, rows - cut)};
  if (is_text) parts.test.windows.stride = data.windows.positions;
  if (data.has_documents()) split_documents(*data.windows.documents, held, parts);
  return parts;
}

Dataset load_validation(std::string_view name,
                        std::string_view own,
                        const Dataset& train,
                        std::uint64_t seed) {
  if (name != own && name.starts_with(kCsv))
    return read_samples_csv(std::string(name.substr(kCsv.size())), train.divisor);
  if (name != own && name == "text") return whole_text("text", train.windows);
  if (name != own && name.starts_with(kText)) return whole_text(text_file(name), train.windows);
  const Lengths lengths = train.has_documents() ? Lengths::Bucket : Lengths::Fixed;
  return load_data(name, seed, train.windows.positions, lengths, train.divisor).test;
}

TrainTest load_data(std::string_view name,
                    std::uint64_t seed,
                    std::int64_t positions,
                    Lengths lengths,
                    float divisor) {
  require(lengths == Lengths::Fixed || name == "text" || name.starts_with("text:"), [&] {
    return "lengths '" + std::string(name_of(lengths)) + "' are of lines; '" + std::string(name) +
           "' is no text: give text or text:FILE[,bytes]";
  });
  if (name == "digits") return split_by_seed(digits(), 0.8, seed);
  const auto rest = [&](std::string_view prefix) {
    return std::string(name.substr(prefix.size()));
  };
  if (name.starts_with(kCsv))
    return split_by_seed(read_samples_csv(rest(kCsv), divisor), 0.8, seed);
  if (name.starts_with("idx:")) return read_samples_folder(rest("idx:"), seed);
  if (name == "text") return text_samples("text", built_in_text(), {positions, false, lengths});
  if (name.starts_with(kText))
    return read_text_samples(text_file(name), {positions, name.ends_with(kBytes), lengths});
  throw InvalidArgument("unknown data '" + std::string(name) +
                        "'; known are digits, csv:FILE, idx:FOLDER, text, text:FILE[,bytes]");
}

}  // namespace millrace
