// Hashes of weights, through xxhash compiled into this file.
#include "millrace/training/state.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "millrace/core/error.hpp"
#include "training/readable_file.hpp"

namespace millrace {
namespace {

std::string hex(const XXH128_hash_t& digest) {
  XXH128_canonical_t bytes;
  XXH128_canonicalFromHash(&bytes, digest);
  std::string text;
  for (const unsigned char byte : bytes.digest) {
    text += "0123456789abcdef"[byte >> 4U];
    text += "0123456789abcdef"[byte & 15U];
  }
  return text;
}

}  // namespace

std::string bytes_digest(std::span<const std::byte> bytes) {
  return hex(XXH3_128bits(bytes.data(), bytes.size()));
}

std::string tensor_digest(const Tensor& tensor) {
  return bytes_digest({static_cast<const std::byte*>(tensor.data()), tensor.bytes()});
}

std::string digest_of(const FileRange& range) {
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  read_pieces(range, 0, range.size, [&](std::span<const std::uint8_t> bytes) {
    XXH3_128bits_update(&state, bytes.data(), bytes.size());
  });
  return hex(XXH3_128bits_digest(&state));
}

std::string combine_digests(const std::map<std::string, std::string>& digest_of) {
  std::string all;
  for (const auto& [name, digest] : digest_of) all += name + "\n" + digest + "\n";
  return hex(XXH3_128bits(all.data(), all.size()));
}

std::string weights_hash(std::span<Parameter* const> parameters) {
  std::map<std::string, std::string> digest_of;
  for (const Parameter* parameter : parameters)
    require(digest_of.emplace(parameter->name, tensor_digest(parameter->value)).second,
            "two parameters are called '" + parameter->name + "'; names must be unique");
  return combine_digests(digest_of);
}

}  // namespace millrace
