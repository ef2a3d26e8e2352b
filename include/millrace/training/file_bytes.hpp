// Whole files as bytes, gunzipped when they are gzip: all that the readers need of the disk.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/core/whole_file.hpp"

namespace millrace {

/// The bytes of `file`, unpacked when it is gzip. Throws as read_whole does, and DataError when the
/// gzip stream is damaged or cut or unpacks to more than `limit`.
std::vector<std::uint8_t> read_file(const std::string& file, const FileLimit& limit = kDataLimit);

/// How many bytes `gzip -9` makes of these, without a name. Throws InvalidArgument for 4 GiB or
/// more.
std::size_t gzipped_size(std::string_view bytes);

/// Unpacks gzip bytes, to at most `limit`; `name` is for messages. Throws as read_file does.
std::vector<std::uint8_t> gunzip(std::span<const std::uint8_t> packed,
                                 const std::string& name,
                                 const FileLimit& limit = kDataLimit);

}  // namespace millrace
