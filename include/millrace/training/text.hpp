// Text as data: a file of bytes, the tokens that they are, and the windows or lines that samples
// are made of.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/training/dataset.hpp"

namespace millrace {

/// The tokens of a text: a number below size() for every byte that it knows, in ascending order of
/// the bytes. Characters beyond ASCII are several bytes, so several tokens.
/// Thread-safety: immutable, share freely.
class Vocabulary {
 public:
  /// Knows nothing.
  Vocabulary() { ids_.fill(-1); }
  /// Knows the bytes that occur in `text`.
  explicit Vocabulary(std::string_view text);
  /// Knows all 256.
  [[nodiscard]] static Vocabulary of_all_bytes();

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(bytes_.size()); }
  /// All that it knows: `Vocabulary(bytes())` is this one.
  [[nodiscard]] const std::string& bytes() const { return bytes_; }
  /// -1 for a byte that it does not know.
  [[nodiscard]] std::int32_t id_of(char byte) const {
    return ids_[static_cast<unsigned char>(byte)];
  }
  /// Throws InvalidArgument, naming place and byte, for one that it does not know.
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const;
  /// Throws InvalidArgument for a number that is no token.
  [[nodiscard]] std::string decode(const std::vector<std::int32_t>& tokens) const;

  [[nodiscard]] const std::array<std::int32_t, 256>& ids() const { return ids_; }

 private:
  std::string bytes_;
  std::array<std::int32_t, 256> ids_{};
};

/// The text that is built into the library: the New Testament in the King James version of 1611,
/// 0.95 MB of ASCII.
[[nodiscard]] std::string built_in_text();

/// How samples are taken from a text.
struct TextOptions {
  std::int64_t positions = 0;  ///< tokens of a sample; at least 1
  bool all_bytes = false;      ///< the vocabulary is all 256 bytes, not those that occur
  Lengths lengths = Lengths::Fixed;
};

/// A text to learn to continue: inputs are the tokens of a window, targets those one further. The
/// first nine tenths train: every window of them is a sample, and an epoch draws, at random and
/// with replacement, as many as lie side by side (see Dataset::Windows). The last tenth tests, each
/// target once but for a rest shorter than a window.
///
/// With lengths in buckets the samples are documents: a document is a line, its inputs begin with
/// the newline before it and its targets end with its own, so every character has one prediction
/// (the first of the text has none, nor have blank lines). A line of more targets than `positions`
/// is cut into pieces of so many; each begins with the character that the one before ended with.
/// The first part then ends with the last newline of the first nine tenths, if there is one, and
/// an epoch has every document once.
///
/// Throws InvalidArgument when either part has no sample, or the text is 2 GiB or more.
[[nodiscard]] TrainTest text_samples(std::string name,
                                     std::string text,
                                     const TextOptions& options);

/// As above over a file, of which each mini-batch reads its samples. Throws InvalidArgument when it
/// cannot be read or is not a regular file. Where the file becomes shorter than it was, taking a
/// sample behind its end throws DataError.
[[nodiscard]] TrainTest read_text_samples(const std::string& file, const TextOptions& options);

/// The bytes of all targets of windows side by side, or of documents, in order. Throws
/// InvalidArgument for a data set that is neither.
[[nodiscard]] std::string text_of_targets(const Dataset& data);

}  // namespace millrace
