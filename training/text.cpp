// Text in memory or in a file: its vocabulary, and the windows or lines of its two parts.
#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <span>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/training/dataset.hpp"
#include "training/embedded.hpp"
#include "training/readable_file.hpp"

namespace millrace {
namespace {

/// A text: bytes in memory, or a part of a file.
class Text {
 public:
  /// In memory, of which every part has a share.
  explicit Text(std::string text) {
    const auto owner = std::make_shared<const std::string>(std::move(text));
    memory_ = *owner;
    owner_ = owner;
  }

  explicit Text(FileRange range) : range_(std::move(range)) {}

  [[nodiscard]] std::int64_t size() const {
    return range_.file ? range_.size : static_cast<std::int64_t>(memory_.size());
  }

  [[nodiscard]] Text part(std::int64_t first, std::int64_t size) const {
    Text text = *this;
    if (range_.file)
      text.range_ = {range_.file, range_.first + first, size};
    else
      text.memory_ =
          memory_.substr(static_cast<std::size_t>(first), static_cast<std::size_t>(size));
    return text;
  }

  /// Calls `use` with all bytes, piece by piece, in order.
  void read(const std::function<void(std::string_view)>& use) const {
    if (!range_.file) return use(memory_);
    read_pieces(range_, 0, range_.size, [&](std::span<const std::uint8_t> bytes) {
      use({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    });
  }

  /// As what samples are made of.
  [[nodiscard]] SampleTensor samples(std::string name) const {
    if (range_.file) return {std::move(name), {}, false, range_};
    auto share = std::make_unique<std::shared_ptr<const void>>(owner_);
    Tensor values(
        DType::U8,
        {size()},
        const_cast<char*>(memory_.data()),  // nothing writes into it
        [](void*, std::size_t, void* kept) noexcept {
          delete static_cast<std::shared_ptr<const void>*>(kept);
        },
        share.get());
    share.release();  // the tensor's now
    return {std::move(name), std::move(values)};
  }

 private:
  std::string_view memory_;
  std::shared_ptr<const void> owner_;
  FileRange range_;
};

Text text_in(const std::string& name) {
  const auto file = std::make_shared<const ReadableFile>(name);
  require(file->size() > 0, name + ": expected text, found an empty file");
  return Text({file, 0, file->size()});
}

/// Windows of `text`, each token's target the next one.
Dataset windows_of(const std::string& name, const Text& text, Dataset::Windows windows) {
  Dataset data;
  data.name = name;
  data.inputs.push_back(text.part(0, text.size() - 1).samples("tokens"));
  data.targets.push_back(text.part(1, text.size() - 1).samples("next tokens"));
  data.classes = windows.vocabulary->size();
  data.windows = std::move(windows);
  return data;
}

/// Behind each newline of a text, in order.
std::vector<std::int64_t> line_ends_of(const Text& text) {
  std::vector<std::int64_t> ends;
  std::int64_t first = 0;
  text.read([&](std::string_view piece) {
    for (std::size_t at = piece.find('\n'); at != std::string_view::npos;
         at = piece.find('\n', at + 1))
      ends.push_back(first + static_cast<std::int64_t>(at) + 1);
    first += static_cast<std::int64_t>(piece.size());
  });
  return ends;
}

/// The lines of `text` that are not blank, in pieces of at most so many targets. Element n is the
/// character n, its target the one behind it.
std::vector<Dataset::Document> documents_in(const Text& text, std::int64_t most) {
  std::vector<Dataset::Document> documents;
  std::int64_t begin = 0;
  const auto add = [&](std::int64_t end) {
    const std::int64_t last = end - 1;
    for (std::int64_t first = std::max<std::int64_t>(begin, 1) - 1; first < last; first += most)
      documents.push_back({first, std::min(most, last - first)});
  };
  for (const std::int64_t end : line_ends_of(text)) {
    if (end > begin + 1) add(end);
    begin = end;
  }
  if (begin < text.size()) add(text.size());
  return documents;
}

/// The lines of `text`, one of the parts of a whole, each token's target the next one.
Dataset documents_of(const std::string& name,
                     const Text& text,
                     std::int64_t whole,
                     Dataset::Windows windows) {
  windows.documents =
      std::make_shared<const std::vector<Dataset::Document>>(documents_in(text, windows.positions));
  require(!windows.documents->empty(), [&] {
    return name + ": " + std::to_string(whole) +
           " bytes are too few: lines of nine tenths of them train, those of one tenth test";
  });
  return windows_of(name, text, std::move(windows));
}

/// Lines of the first nine tenths, and of the rest.
TrainTest documents_of(const std::string& name, const Text& text, const Dataset::Windows& windows) {
  const std::int64_t nine_tenths = text.size() * 9 / 10;
  const std::vector<std::int64_t> ends = line_ends_of(text);
  const auto behind = std::ranges::upper_bound(ends, nine_tenths + 1);
  const std::int64_t last = behind == ends.begin() ? nine_tenths : *std::prev(behind) - 1;
  return {documents_of(name, text.part(0, last + 1), text.size(), windows),
          documents_of(name, text.part(last, text.size() - last), text.size(), windows)};
}

/// All bytes that occur in the text, or all that there are.
std::shared_ptr<const Vocabulary> vocabulary_of(const Text& text, const TextOptions& options) {
  if (options.all_bytes) return std::make_shared<const Vocabulary>(Vocabulary::of_all_bytes());
  std::string found;
  text.read([&](std::string_view piece) { found = Vocabulary(found.append(piece)).bytes(); });
  return std::make_shared<const Vocabulary>(found);
}

TrainTest samples_of(const std::string& name, const Text& text, const TextOptions& options) {
  require(options.positions >= 1,
          "text is cut into windows of a number of positions, which a model of sequences names: "
          "gpt:...,context=128");
  require(text.size() <= std::numeric_limits<std::int32_t>::max(),
          name + ": a text has less than 2 GiB");
  if (options.lengths == Lengths::Bucket)
    return documents_of(
        name, text, {options.positions, options.positions, vocabulary_of(text, options)});
  const std::int64_t train = text.size() * 9 / 10;
  const std::int64_t test = text.size() - train;
  require(std::min(train, test) > options.positions, [&] {
    return name + ": " + std::to_string(text.size()) + " bytes are too few for windows of " +
           std::to_string(options.positions) +
           " positions: nine tenths of them train, one tenth tests";
  });
  const auto vocabulary = vocabulary_of(text, options);
  return {
      windows_of(name, text.part(0, train), {options.positions, 1, vocabulary}),
      windows_of(name, text.part(train, test), {options.positions, options.positions, vocabulary})};
}

}  // namespace

Vocabulary::Vocabulary(std::string_view text) {
  ids_.fill(-1);
  for (const char byte : text) ids_[static_cast<unsigned char>(byte)] = 0;
  for (std::size_t byte = 0; byte < ids_.size(); ++byte)
    if (ids_[byte] == 0) {
      ids_[byte] = static_cast<std::int32_t>(bytes_.size());
      bytes_.push_back(static_cast<char>(byte));
    }
}

Vocabulary Vocabulary::of_all_bytes() {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(byte));
  return Vocabulary(all);
}

std::vector<std::int32_t> Vocabulary::encode(std::string_view text) const {
  std::vector<std::int32_t> tokens;
  for (std::size_t i = 0; i < text.size(); ++i) {
    tokens.push_back(id_of(text[i]));
    require(tokens.back() >= 0, [&] {
      return "byte " + std::to_string(i) + " of the text, " +
             std::to_string(static_cast<unsigned char>(text[i])) +
             ", is not in the vocabulary of " + std::to_string(size()) + " bytes";
    });
  }
  return tokens;
}

std::string Vocabulary::decode(const std::vector<std::int32_t>& tokens) const {
  std::string text;
  for (const std::int32_t token : tokens) {
    require(token >= 0 && token < size(), [&] {
      return "token " + std::to_string(token) + " is outside 0.." + std::to_string(size() - 1);
    });
    text.push_back(bytes_[static_cast<std::size_t>(token)]);
  }
  return text;
}

std::string built_in_text() {
  const std::vector<std::uint8_t> bytes = gunzip(embedded_text(), "the built-in text");
  return {bytes.begin(), bytes.end()};
}

TrainTest text_samples(std::string name, std::string text, const TextOptions& options) {
  return samples_of(name, Text(std::move(text)), options);
}

TrainTest read_text_samples(const std::string& file, const TextOptions& options) {
  return samples_of(file, text_in(file), options);
}

Dataset whole_text(const std::string& file, const Dataset::Windows& like) {
  const Text text = file == "text" ? Text(built_in_text()) : text_in(file);
  require(like.vocabulary != nullptr, file + " is text, but the training data is not");
  text.read([&](std::string_view piece) {
    for (const char byte : piece)
      if (like.vocabulary->id_of(byte) < 0)
        throw DataError(file + " has byte " + std::to_string(static_cast<unsigned char>(byte)) +
                        ", which the training data has not; text:FILE,bytes knows all");
  });
  const Dataset::Windows windows{like.positions, like.positions, like.vocabulary};
  if (like.documents) return documents_of(file, text, text.size(), windows);
  require(text.size() > like.positions,
          file + ": " + std::to_string(text.size()) + " bytes are too few for windows of " +
              std::to_string(like.positions) + " positions");
  return windows_of(file, text, windows);
}

namespace {

std::string bytes_of(const SampleTensor& tensor, std::int64_t first, std::int64_t count) {
  std::string text;
  const auto add = [&](std::span<const std::uint8_t> bytes) {
    text.append(bytes.begin(), bytes.end());
  };
  if (tensor.values)
    add(tensor.values.as<std::uint8_t>().subspan(static_cast<std::size_t>(first),
                                                 static_cast<std::size_t>(count)));
  else
    read_pieces(tensor.range, first, count, add);
  return text;
}

}  // namespace

std::string text_of_targets(const Dataset& data) {
  require(data.windows.positions > 0 && !data.overlaps(),
          data.name + " is no text in windows side by side or documents");
  const SampleTensor& targets = data.targets.at(0);
  if (!data.has_documents()) return bytes_of(targets, 0, data.size() * data.windows.positions);
  std::string text;
  for (const Dataset::Document& document : *data.windows.documents)
    text += bytes_of(targets, document.first, document.positions);
  return text;
}

}  // namespace millrace
