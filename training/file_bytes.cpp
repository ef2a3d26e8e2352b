// Reading and unpacking files through zlib, with sentences for what can be wrong.
#include <algorithm>
#include <array>
#include <limits>

#include "millrace/training/dataset.hpp"

#define ZLIB_CONST  // input is read only
#include <zlib.h>

#include "millrace/core/error.hpp"

namespace millrace {
namespace {

/// Ends the inflate stream on every way out.
class Inflater {
 public:
  Inflater() {
    // 16 asks zlib for a gzip header and trailer.
    if (inflateInit2(&stream_, 16 + MAX_WBITS) != Z_OK)
      throw DataError("zlib could not be started");
  }

  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater() { inflateEnd(&stream_); }

  z_stream& stream() { return stream_; }

 private:
  z_stream stream_{};
};

}  // namespace

std::vector<std::uint8_t> gunzip(std::span<const std::uint8_t> packed,
                                 const std::string& name,
                                 const FileLimit& limit) {
  require(packed.size() <= std::numeric_limits<uInt>::max(), name + " is too large to unpack");
  Inflater inflater;
  z_stream& stream = inflater.stream();
  stream.next_in = packed.data();
  stream.avail_in = static_cast<uInt>(packed.size());
  std::vector<std::uint8_t> bytes;
  std::vector<std::uint8_t> block(std::size_t{1} << 16U);
  for (int answer = Z_OK; answer != Z_STREAM_END;) {
    stream.next_out = block.data();
    stream.avail_out = static_cast<uInt>(block.size());
    answer = inflate(&stream, Z_NO_FLUSH);
    const std::size_t made = block.size() - stream.avail_out;
    bytes.insert(bytes.end(), block.begin(), block.begin() + static_cast<std::ptrdiff_t>(made));
    if (bytes.size() > limit.bytes) throw DataError(name + ": unpacked it " + too_large(limit));
    if (answer == Z_OK && (made > 0 || stream.avail_in > 0)) continue;
    if (answer == Z_STREAM_END) break;
    const std::string at = " after " + std::to_string(bytes.size()) + " unpacked bytes";
    throw DataError(name + ": the gzip stream is " +
                    (answer == Z_BUF_ERROR || answer == Z_OK ? "cut off" : "damaged") + at);
  }
  return bytes;
}

std::vector<std::uint8_t> read_file(const std::string& file, const FileLimit& limit) {
  auto bytes = read_whole<std::vector<std::uint8_t>>(file + ":", file, limit);
  const bool packed = bytes.size() >= 2 && bytes[0] == 0x1F && bytes[1] == 0x8B;
  return packed ? gunzip(bytes, file, limit) : bytes;
}

std::size_t gzipped_size(std::string_view bytes) {
  require(bytes.size() < kDataLimit.bytes, "a text of 4 GiB or more is not packed");
  z_stream stream{};
  constexpr int kGzip = 16;  // asks zlib for a gzip header and trailer
  constexpr int kMemory = 8;
  if (deflateInit2(&stream, 9, Z_DEFLATED, kGzip + MAX_WBITS, kMemory, Z_DEFAULT_STRATEGY) != Z_OK)
    throw DataError("zlib could not be started");
  stream.next_in = reinterpret_cast<const Bytef*>(bytes.data());
  stream.avail_in = static_cast<uInt>(bytes.size());
  std::array<Bytef, 1 << 16> packed{};
  int state = Z_OK;
  while (state == Z_OK) {
    stream.next_out = packed.data();
    stream.avail_out = static_cast<uInt>(packed.size());
    state = deflate(&stream, Z_FINISH);
  }
  const auto size = static_cast<std::size_t>(stream.total_out);
  deflateEnd(&stream);
  return size;
}

}  // namespace millrace
