// Whole files as bytes, gunzipped when they are gzip: all that the readers need of the disk.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace millrace {

/// The bytes of `file`, unpacked when it is gzip. Throws InvalidArgument when it cannot be
/// opened, DataError when it cannot be read, when the gzip stream is damaged or cut, or when it
/// unpacks to more than 4 GiB.
std::vector<std::uint8_t> read_file(const std::string& file);

/// Unpacks gzip bytes; `name` is for messages.
std::vector<std::uint8_t> gunzip(std::span<const std::uint8_t> packed, const std::string& name);

}  // namespace millrace
