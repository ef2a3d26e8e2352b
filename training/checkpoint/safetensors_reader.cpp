// Reading safetensors: the header is checked field by field, and then the places of the tensors
// against each other and the file.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>
#include <tuple>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/training/checkpoint.hpp"
#include "training/checkpoint/safetensors_types.hpp"
#include "training/checkpoint/strict_json.hpp"

namespace millrace {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::uint64_t kHeaderLengthBytes = 8;

/// An entry with its place in the data.
struct Placed {
  SafetensorsEntry entry;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// How files begin that are taken for safetensors.
struct OtherKind {
  std::string_view begin;
  const char* sentence;
};

using namespace std::string_view_literals;
constexpr std::array<OtherKind, 8> kOtherKinds = {{
    {"version https://git-lfs"sv,
     "is a git-lfs pointer, not the file itself; git lfs pull fetches that"},
    {"PK\x03\x04"sv,
     "is a zip archive, as torch.save writes; save the weights with safetensors.torch.save_file"},
    {"\x80\x02"sv,
     "is a pickle, as older torch.save writes; save the weights with safetensors.torch.save_file"},
    {"\x1F\x8B"sv, "is gzip-compressed; unpack it first"},
    {"\x89HDF"sv, "is an HDF5 file, not safetensors"},
    {"GGUF"sv, "is a GGUF file, not safetensors"},
    {"{"sv, "is JSON, not safetensors"},
    {"<"sv, "is HTML or XML, not safetensors"},
}};

/// What a file is that is no safetensors file; null: not known. Its first 8 bytes are a length, so
/// only one that does not fit makes the file something else.
const char* other_kind(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()),
                              std::min<std::size_t>(bytes.size(), 32));
  for (const OtherKind& kind : kOtherKinds)
    if (text.starts_with(kind.begin)) return kind.sentence;
  return nullptr;
}

/// Reads one file; every refusal names it.
class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& file) : bytes_(bytes), file_(file) {}

  Safetensors read() {
    const std::string_view header = header_text();
    data_ = bytes_.subspan(kHeaderLengthBytes + header.size());
    const json document = parse_strictly(header, file_ + ": the header");
    Safetensors result;
    std::vector<Placed> placed;
    for (const auto& [name, value] : document.items()) {
      if (name == "__metadata__")
        result.metadata = metadata_of(value);
      else
        placed.push_back(entry_of(name, value));
    }
    place(placed);
    for (Placed& one : placed) result.entries.push_back(std::move(one.entry));
    result.by_name.resize(result.entries.size());
    std::iota(result.by_name.begin(), result.by_name.end(), std::size_t{0});
    std::ranges::sort(result.by_name, {}, [&](std::size_t i) -> const std::string& {
      return result.entries[i].name;
    });
    return result;
  }

 private:
  [[noreturn]] void refuse(const std::string& sentence) const {
    throw DataError(file_ + ": " + sentence);
  }

  [[noreturn]] void refuse(const std::string& name, const std::string& sentence) const {
    refuse("tensor '" + name + "' " + sentence);
  }

  [[nodiscard]] bool has_header() const {
    return bytes_.size() > kHeaderLengthBytes &&
           static_cast<char>(bytes_[kHeaderLengthBytes]) == '{';
  }

  [[nodiscard]] std::string_view header_text() const {
    if (const char* kind = other_kind(bytes_); kind != nullptr && !has_header()) refuse(kind);
    if (bytes_.size() < kHeaderLengthBytes)
      refuse("is cut off: it has " + std::to_string(bytes_.size()) +
             " bytes, and a safetensors file begins with 8 for the length of its header");
    std::uint64_t length = 0;
    std::memcpy(&length, bytes_.data(), sizeof length);
    if (length > kSafetensorsHeaderMost)
      refuse("claims a header of " + std::to_string(length) + " bytes; at most " +
             std::to_string(kSafetensorsHeaderMost) + " are allowed");
    if (length > bytes_.size() - kHeaderLengthBytes)
      refuse("is cut off: its header has " + std::to_string(length) + " bytes, and " +
             std::to_string(bytes_.size() - kHeaderLengthBytes) + " follow");
    const auto* text = reinterpret_cast<const char*>(bytes_.data()) + kHeaderLengthBytes;
    if (length == 0 || *text != '{') refuse("its header does not begin with '{'");
    return {text, static_cast<std::size_t>(length)};
  }

  [[nodiscard]] SafetensorsMetadata metadata_of(const json& value) const {
    if (!value.is_object()) refuse("__metadata__ is not an object");
    SafetensorsMetadata metadata;
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) refuse("__metadata__ '" + key + "' is not a text");
      metadata[key] = text.get<std::string>();
    }
    return metadata;
  }

  void check_name(const std::string& name) const {
    if (name.size() > kSafetensorsNameMost)
      refuse("a tensor's name has " + std::to_string(name.size()) + " bytes; at most " +
             std::to_string(kSafetensorsNameMost) + " are allowed");
    for (const char letter : name)
      if (static_cast<unsigned char>(letter) < 0x20 || letter == 0x7F)
        refuse("a tensor's name has a control character");
  }

  [[nodiscard]] std::uint64_t count_of(const std::string& name,
                                       const json& value,
                                       const char* what) const {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > std::uint64_t{1} << 62U)
      refuse(name, std::string("has ") + what + " that is not a whole number from 0 to 2^62");
    return value.get<std::uint64_t>();
  }

  [[nodiscard]] Placed entry_of(const std::string& name, const json& value) const {
    check_name(name);
    if (!value.is_object() || value.size() != 3 || !value.contains("dtype") ||
        !value.contains("shape") || !value.contains("data_offsets"))
      refuse(name, "must have dtype, shape and data_offsets, and nothing else");
    Placed placed;
    placed.entry.name = name;
    const json& dtype = value["dtype"];
    const SafetensorsType* type =
        dtype.is_string() ? safetensors_type(dtype.get_ref<const std::string&>()) : nullptr;
    if (type == nullptr) refuse(name, "has a dtype that the format does not know");
    placed.entry.type = type->name;
    const json& shape = value["shape"];
    if (!shape.is_array()) refuse(name, "has a shape that is not a list");
    for (const json& extent : shape)
      placed.entry.extents.push_back(
          static_cast<std::int64_t>(count_of(name, extent, "an extent")));
    const json& offsets = value["data_offsets"];
    if (!offsets.is_array() || offsets.size() != 2)
      refuse(name, "must have two data_offsets, begin and end");
    placed.begin = count_of(name, offsets[0], "an offset");
    placed.end = count_of(name, offsets[1], "an offset");
    check_size(placed, *type);
    return placed;
  }

  void check_size(const Placed& placed, const SafetensorsType& type) const {
    std::uint64_t bits = type.bits;
    bool fits = true;
    for (const std::int64_t extent : placed.entry.extents)
      fits = fits && !__builtin_mul_overflow(bits, static_cast<std::uint64_t>(extent), &bits);
    if (!fits) refuse(placed.entry.name, "is too large to address");
    if (placed.begin > placed.end || bits % 8 != 0 || placed.end - placed.begin != bits / 8)
      refuse(placed.entry.name,
             "lies from byte " + std::to_string(placed.begin) + " to " +
                 std::to_string(placed.end) + ", but its dtype and shape make " +
                 std::to_string(bits / 8) + " bytes");
  }

  /// In the order of the data; each begins where the one before it ends.
  void place(std::vector<Placed>& placed) const {
    std::ranges::sort(placed, [](const Placed& a, const Placed& b) {
      return std::tie(a.begin, a.end, a.entry.name) < std::tie(b.begin, b.end, b.entry.name);
    });
    std::uint64_t end = 0;
    for (const Placed& one : placed) {
      if (one.begin != end)
        refuse(one.entry.name,
               "begins at byte " + std::to_string(one.begin) + " of the data, but what lies " +
                   "before it ends at " + std::to_string(end));
      end = one.end;
    }
    if (end != data_.size())
      refuse("has " + std::to_string(data_.size()) + " bytes of data, but its tensors end at " +
             std::to_string(end));
    for (Placed& one : placed) one.entry.bytes = data_.subspan(one.begin, one.end - one.begin);
  }

  std::span<const std::byte> bytes_;
  std::span<const std::byte> data_;
  const std::string& file_;
};

}  // namespace

std::optional<DType> SafetensorsEntry::dtype() const {
  const SafetensorsType* found = safetensors_type(type);
  return found == nullptr ? std::nullopt : found->dtype;
}

Tensor SafetensorsEntry::tensor() const {
  const std::optional<DType> held = dtype();
  if (!held)
    throw DataError("tensor '" + name + "' is " + type + ", which this library cannot hold");
  if (extents.size() > Dims::kMax)
    throw DataError("tensor '" + name + "' has " + std::to_string(extents.size()) +
                    " extents; at most " + std::to_string(Dims::kMax) + " can be held");
  Tensor copy(*held, Dims(extents));
  if (!bytes.empty()) std::memcpy(copy.data(), bytes.data(), bytes.size());
  return copy;
}

const SafetensorsEntry* Safetensors::find(std::string_view name) const {
  const auto name_of_entry = [&](std::size_t i) -> std::string_view { return entries[i].name; };
  const auto at = std::ranges::lower_bound(by_name, name, {}, name_of_entry);
  return at == by_name.end() || name_of_entry(*at) != name ? nullptr : &entries[*at];
}

Safetensors read_safetensors(std::span<const std::byte> bytes, const std::string& file) {
  return Reader(bytes, file).read();
}

}  // namespace millrace
