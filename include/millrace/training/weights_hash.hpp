// One short text that says whether two models are the same, bit for bit.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>

#include "millrace/stages/stage.hpp"

namespace millrace {

/// xxh3-128 of the bytes, as 32 hexadecimal digits. Cost: O(bytes).
[[nodiscard]] std::string bytes_digest(std::span<const std::byte> bytes);

/// xxh3-128 of a tensor's bytes, as 32 hexadecimal digits. Cost: O(bytes).
[[nodiscard]] std::string tensor_digest(const Tensor& tensor);

/// xxh3-128 over the names and digests of parameters in ascending order of name, each with a line
/// end, as 32 hexadecimal digits. Processes exchange digests, not weights.
[[nodiscard]] std::string combine_digests(const std::map<std::string, std::string>& digest_of);

/// combine_digests over the values of `parameters`, whatever their order: the `weights_hash` of a
/// model. Throws InvalidArgument when two have one name.
[[nodiscard]] std::string weights_hash(std::span<Parameter* const> parameters);

}  // namespace millrace
