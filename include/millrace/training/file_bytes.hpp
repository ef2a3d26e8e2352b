// Whole files as bytes, gunzipped when they are gzip: all that the readers need of the disk.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

/// The bytes of `file`, unpacked when it is gzip. Throws InvalidArgument when it cannot be
/// opened, DataError when it cannot be read, when the gzip stream is damaged or cut, or when it
/// unpacks to more than 4 GiB.
std::vector<std::uint8_t> read_file(const std::string& file);

/// How many bytes `gzip -9` makes of these, without a name. Throws InvalidArgument for 4 GiB or
/// more.
std::size_t gzipped_size(std::string_view bytes);

/// Unpacks gzip bytes; `name` is for messages.
std::vector<std::uint8_t> gunzip(std::span<const std::uint8_t> packed, const std::string& name);

}  // namespace millrace
