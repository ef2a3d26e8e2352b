// Data sets in memory, text as windows or lines, and the readers of files. Damaged input is
// rejected by one message with file, place, expected and given form.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/core/tensor.hpp"
#include "millrace/core/whole_file.hpp"

namespace millrace {

class ReadableFile;

/// Bytes [first, first + size) of a file. Each use reads what it needs, so that processes of one
/// machine share the operating system's memory of it.
struct FileRange {
  std::shared_ptr<const ReadableFile> file = {};
  std::int64_t first = 0;
  std::int64_t size = 0;
};

/// One tensor that every sample has.
struct SampleTensor {
  std::string name;  ///< for messages: "features", "tokens", "labels", "weights"
  Tensor values;     ///< [n, ...] of any dtype
  /// The second extent is positions of a sequence, which the slices of a schedule cut.
  bool sequence = false;
  /// Instead of `values`: [size] of u8, in windows alone. DataError where the file has become
  /// shorter.
  FileRange range = {};

  /// The first extent; 0 where there is nothing.
  [[nodiscard]] std::int64_t rows() const { return values ? values.rows() : range.size; }
};

class Vocabulary;

/// How long the samples of a text are.
enum class Lengths : std::uint8_t {
  Fixed,   ///< windows of as many positions as the model takes
  Bucket,  ///< lines; micro-batches hold those of similar length, padded to their own longest
};

/// "fixed", "bucket".
[[nodiscard]] std::string_view name_of(Lengths lengths);

/// Those called `name`. Throws InvalidArgument that lists the known names.
[[nodiscard]] Lengths lengths_called(std::string_view name);

/// Samples with their targets, each made of any number of tensors.
/// Thread-safety: immutable once filled, share freely.
struct Dataset {
  /// A sample of a length of its own.
  struct Document {
    std::int64_t first = 0;      ///< its first element
    std::int64_t positions = 0;  ///< at least 1
  };

  /// Samples that overlap: tensors are sequences [length] of u8, of which sample n is the elements
  /// from n * stride on, as i32 numbers by the vocabulary.
  struct Windows {
    /// Of a sample, of documents the most; 0: no windows, the tensors have a row per sample.
    std::int64_t positions = 0;
    std::int64_t stride = 1;  ///< positions from one sample's first to the next one's
    std::shared_ptr<const Vocabulary> vocabulary = {};
    /// Where there are some, sample n is document n instead. Shared by copies of the windows.
    std::shared_ptr<const std::vector<Document>> documents = {};
  };

  std::string name;                  ///< for messages: "digits", a file, a folder
  std::vector<SampleTensor> inputs;  ///< what a model takes, in its order
  /// What its loss takes: i32 labels from 0, or numbers to regress, and weights if elements count
  /// differently (see Loss::measure); nothing where there is nothing to compare with.
  std::vector<SampleTensor> targets = {};
  std::int64_t classes = 0;  ///< labels are below this; 0 when the targets are not labels
  Windows windows = {};
  /// What the features of a CSV file were divided by; a model that trained from them needs those of
  /// other files divided by the same.
  float divisor = 1;

  /// Samples that there are.
  [[nodiscard]] std::int64_t size() const;
  /// Samples of an epoch: all of them once; of windows that overlap as many as lie side by side,
  /// drawn at random.
  [[nodiscard]] std::int64_t epoch_size() const;
  [[nodiscard]] bool overlaps() const { return windows.stride < windows.positions; }
  [[nodiscard]] bool has_documents() const { return windows.documents != nullptr; }
  /// Elements of the first input of a sample, of documents at most.
  [[nodiscard]] std::int64_t width() const;
  /// Positions of a sample, of documents at most; 1 where nothing is a sequence. Throws
  /// InvalidArgument when sequences differ in length.
  [[nodiscard]] std::int64_t positions() const;
};

/// Samples of one tensor `features` [n, ...], with one tensor of targets [n, ...] or none.
[[nodiscard]] Dataset make_dataset(std::string name,
                                   Tensor features,
                                   Tensor targets = {},
                                   std::int64_t classes = 0);

/// What tells the contents of one data set from another: xxh3-128 over its tensors, as 32
/// hexadecimal digits; empty where there are only sizes and no features.
[[nodiscard]] std::string contents_digest(const Dataset& data);

/// Throws InvalidArgument, naming the tensor, unless all have as many rows as the first input.
void check_rows(const Dataset& data);

/// What to learn from and what to judge by.
struct TrainTest {
  Dataset train;
  Dataset test;
  Dataset validation = {};  ///< for validation while training; may have no samples
};

/// The permutation of 0..n-1 that `key` names: Fisher-Yates over counter-based random numbers, so a
/// pure function of (seed, purpose, epoch) on every machine. Cost: O(n), about 50 ns each.
/// Throws InvalidArgument unless n is at least 0 and below 2^31.
[[nodiscard]] std::vector<std::int32_t> shuffled_order(std::int64_t n,
                                                       std::uint64_t seed,
                                                       std::uint64_t epoch);

/// The given rows of `data`, copied. Throws InvalidArgument when a row is out of range.
[[nodiscard]] Dataset select_rows(const Dataset& data, const std::vector<std::int32_t>& rows);

/// Cuts a data set in two by a permutation of the seed: the first `train_share` of the rows
/// (rounded down, at least one on each side) to train, the rest to test.
/// Throws InvalidArgument when there are fewer than two samples or the share is not inside (0, 1).
[[nodiscard]] TrainTest split_by_seed(const Dataset& data, double train_share, std::uint64_t seed);

/// Cuts the last `share` of the samples off, rounded down, at least one on each side; of windows
/// and documents the tail of the text, in windows side by side. No sample of `test` has a target
/// that `train` has. Throws as split_by_seed.
[[nodiscard]] TrainTest hold_out(const Dataset& data, double share);

/// The handwritten digits that are built into the library: 1,797 images of 8x8 (Alpaydin and
/// Kaynak, UCI 1998, CC BY 4.0), features in [0, 1], ten classes.
[[nodiscard]] Dataset digits();

/// Reads numbers separated by commas, or by semicolons or tabs where the first line has no comma,
/// one sample per line, the label (an integer from 0) last; plain or gzipped. A first line without
/// any number is a header, and skipped. All features are divided by `divisor`, or if it is 0 by the
/// largest magnitude among them (when that is not 0), so that images of any depth arrive in [-1,
/// 1]; see Dataset::divisor. Blank lines and a final newline are allowed. Throws DataError naming
/// file and line, also for targets that are no labels; InvalidArgument when there is no such file,
/// or for a divisor that is negative or not finite.
[[nodiscard]] Dataset read_samples_csv(const std::string& file, float divisor = 0);

/// Reads one images file and one labels file in MNIST's IDX format (unsigned bytes, big-endian
/// extents), plain or gzipped; features are divided by 255. Throws DataError naming file and
/// offset, InvalidArgument when there is no such file.
[[nodiscard]] Dataset read_samples_idx(const std::string& images_file,
                                       const std::string& labels_file);

/// Reads a folder of IDX files by MNIST's names (train-images-idx3-ubyte, train-labels-idx1-ubyte,
/// t10k-..., each plain or with .gz; a dot before idx is accepted too). Without the t10k pair, the
/// training set is split 80/20 by `seed`.
[[nodiscard]] TrainTest read_samples_folder(const std::string& folder, std::uint64_t seed);

/// The given rows, longest document first; of two of one length the one that came first.
[[nodiscard]] std::vector<std::int32_t> longest_first(const Dataset& data,
                                                      std::span<const std::int32_t> rows);

/// The rows of overlapping windows that mini-batch `number`, counted over all epochs, draws: a pure
/// function of (seed, number, sample).
[[nodiscard]] std::vector<std::int32_t> drawn_windows(const Dataset& data,
                                                      std::int64_t count,
                                                      std::uint64_t seed,
                                                      std::uint64_t number);

/// "digits", "csv:FILE" or "idx:FOLDER", 80/20 by seed where no test set exists; "text" (the
/// built-in one) or "text:FILE[,bytes]" in windows of `positions` or lines of at most as many (see
/// text.hpp). Throws InvalidArgument for any other word, for what is not there and for lengths that
/// differ where the data is no text, DataError for damaged files. `divisor` is that of
/// read_samples_csv.
[[nodiscard]] TrainTest load_data(std::string_view name,
                                  std::uint64_t seed,
                                  std::int64_t positions = 0,
                                  Lengths lengths = Lengths::Fixed,
                                  float divisor = 0);

/// Data to validate a training on `train` by. Of csv:FILE, text and text:FILE all samples, with the
/// divisor or the vocabulary of `train`; of digits, idx:FOLDER and `own`, which `train` is of, the
/// test set. Throws as load_data, and DataError for a byte that the vocabulary does not know.
[[nodiscard]] Dataset load_validation(std::string_view name,
                                      std::string_view own,
                                      const Dataset& train,
                                      std::uint64_t seed);

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

/// All of "text", the built-in one, or of a file, in windows side by side or documents by the
/// vocabulary of `like`. Throws as read_text_samples, and DataError for a byte that the vocabulary
/// does not know.
[[nodiscard]] Dataset whole_text(const std::string& file, const Dataset::Windows& like);

/// The bytes of all targets of windows side by side, or of documents, in order. Throws
/// InvalidArgument for a data set that is neither.
[[nodiscard]] std::string text_of_targets(const Dataset& data);

}  // namespace millrace
