// Writing safetensors: the header is made once, tensors are copied into their places.
#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

#include <nlohmann/json.hpp>

#include "millrace/core/error.hpp"
#include "millrace/training/checkpoint.hpp"
#include "training/checkpoint/safetensors_types.hpp"

namespace millrace {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kDataAlignment = 4096;

std::size_t bytes_of_place(const SafetensorsPlace& place) {
  return bytes_of(place.dtype, place.dims);
}

void check(const SafetensorsPlace& place) {
  const std::string& name = place.name;
  require(name != "__metadata__", "a tensor cannot be called '__metadata__'");
  require(name.size() <= kSafetensorsNameMost, [&] {
    return "the name of a tensor has at most " + std::to_string(kSafetensorsNameMost) +
           " bytes, got " + std::to_string(name.size());
  });
  for (const char letter : name)
    require(static_cast<unsigned char>(letter) >= 0x20 && letter != 0x7F,
            "the name of a tensor has no control characters, got '" + name + "'");
}

/// Numbers of the places as their bytes lie: widest elements first, then by name.
std::vector<std::size_t> order_of(const std::vector<SafetensorsPlace>& places) {
  std::vector<std::size_t> order(places.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(
      order, std::greater<>(), [&](std::size_t i) { return size_of(places[i].dtype); });
  return order;
}

/// Length and JSON, padded with spaces to where the data begins.
std::string header_of(const ordered_json& document) {
  std::string text;
  try {
    text = document.dump();
  } catch (const ordered_json::exception&) {
    throw InvalidArgument("the names of tensors and their metadata must be UTF-8");
  }
  const std::size_t whole =
      (kLengthBytes + text.size() + kDataAlignment - 1) / kDataAlignment * kDataAlignment;
  text.resize(whole - kLengthBytes, ' ');
  const std::uint64_t length = text.size();
  require(length <= kSafetensorsHeaderMost, [&] {
    return "the header of a safetensors file has at most " +
           std::to_string(kSafetensorsHeaderMost) + " bytes, got " + std::to_string(length);
  });
  std::string header(kLengthBytes, '\0');
  std::memcpy(header.data(), &length, sizeof length);
  return header + text;
}

}  // namespace

SafetensorsImage::SafetensorsImage(std::vector<SafetensorsPlace> places,
                                   const SafetensorsMetadata& metadata)
    : places_(std::move(places)), begins_(places_.size()) {
  std::ranges::sort(places_, {}, &SafetensorsPlace::name);
  for (std::size_t i = 0; i < places_.size(); ++i) {
    check(places_[i]);
    require(i == 0 || places_[i - 1].name != places_[i].name,
            "two tensors are called '" + places_[i].name + "'");
  }
  ordered_json document = ordered_json::object();
  if (!metadata.empty()) document["__metadata__"] = metadata;
  std::size_t end = 0;
  for (const std::size_t i : order_of(places_)) {
    const SafetensorsPlace& place = places_[i];
    begins_[i] = end;
    end += bytes_of_place(place);
    document[place.name] = {
        {"dtype", safetensors_name(place.dtype)},
        {"shape", std::vector<std::int64_t>(place.dims.begin(), place.dims.end())},
        {"data_offsets", {begins_[i], end}}};
  }
  const std::string header = header_of(document);
  file_ = Tensor(DType::U8, {static_cast<std::int64_t>(header.size() + end)});
  std::memcpy(file_.data(), header.data(), header.size());
  for (std::size_t& begin : begins_) begin += header.size();
}

std::size_t SafetensorsImage::number_of(std::string_view name) const {
  const auto found = std::ranges::lower_bound(places_, name, {}, &SafetensorsPlace::name);
  require(found != places_.end() && found->name == name,
          [&] { return "no tensor of this file is called '" + std::string(name) + "'"; });
  return static_cast<std::size_t>(found - places_.begin());
}

void SafetensorsImage::fill(std::string_view name, const Tensor& tensor) {
  const std::size_t number = number_of(name);
  const SafetensorsPlace& place = places_[number];
  require(tensor.dtype() == place.dtype && tensor.dims() == place.dims, [&] {
    return "tensor '" + place.name + "' of this file is " + name_of(place.dtype) + " " +
           to_string(place.dims) + ", got " + name_of(tensor.dtype()) + " " +
           to_string(tensor.dims());
  });
  if (tensor.bytes() != 0)
    std::memcpy(file_.as<std::uint8_t>().data() + begins_[number], tensor.data(), tensor.bytes());
}

std::span<const std::byte> SafetensorsImage::bytes() const {
  return {static_cast<const std::byte*>(file_.data()), file_.bytes()};
}

std::span<const std::byte> SafetensorsImage::bytes_of(std::string_view name) const {
  const std::size_t number = number_of(name);
  return bytes().subspan(begins_[number], bytes_of_place(places_[number]));
}

}  // namespace millrace
