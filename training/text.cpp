// Text in memory or mapped: its vocabulary, and the windows or lines of its two parts.
#include "millrace/training/text.hpp"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <limits>
#include <memory>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/training/file_bytes.hpp"
#include "training/embedded_text.hpp"

namespace millrace {
namespace {

/// A text and whoever keeps its memory.
struct Memory {
  std::string_view text;
  std::shared_ptr<const void> owner;
};

/// A file open to be read.
class ReadableFile {
 public:
  explicit ReadableFile(const std::string& file)
      : file_(::open(file.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ReadableFile(const ReadableFile&) = delete;
  ReadableFile& operator=(const ReadableFile&) = delete;
  ~ReadableFile() {
    if (file_ >= 0) ::close(file_);
  }

  [[nodiscard]] int get() const { return file_; }

 private:
  int file_;
};

[[noreturn]] void fail(const std::string& file, const char* what) {
  throw InvalidArgument(file + ": cannot be " + what + ": " +
                        std::generic_category().message(errno));
}

Memory mapped(const std::string& name) {
  const ReadableFile file(name);
  struct stat facts {};
  if (file.get() < 0 || ::fstat(file.get(), &facts) != 0) fail(name, "opened");
  require(S_ISREG(facts.st_mode), name + ": expected a file of text, found something else");
  require(facts.st_size > 0, name + ": expected text, found an empty file");
  const auto bytes = static_cast<std::size_t>(facts.st_size);
  void* memory = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (memory == MAP_FAILED) fail(name, "mapped");
  const std::shared_ptr<const void> owner(memory,
                                          [bytes](void* mapping) { ::munmap(mapping, bytes); });
  return {{static_cast<const char*>(memory), bytes}, owner};
}

Memory kept(std::string text) {
  const auto owner = std::make_shared<const std::string>(std::move(text));
  return {*owner, owner};
}

/// The bytes of `text` as a tensor that keeps the memory alive. Nobody writes into it.
Tensor tensor_over(std::string_view text, const std::shared_ptr<const void>& owner) {
  auto* share = new std::shared_ptr<const void>(owner);
  return {DType::U8,
          {static_cast<std::int64_t>(text.size())},
          const_cast<char*>(text.data()),
          [](void*, std::size_t, void* kept) noexcept {
            delete static_cast<std::shared_ptr<const void>*>(kept);
          },
          share};
}

/// Windows of `text`, each token's target the next one.
Dataset windows_of(const std::string& name,
                   const Memory& memory,
                   std::string_view text,
                   Dataset::Windows windows) {
  Dataset data;
  data.name = name;
  data.inputs.push_back({"tokens", tensor_over(text.substr(0, text.size() - 1), memory.owner)});
  data.targets.push_back({"next tokens", tensor_over(text.substr(1), memory.owner)});
  data.classes = windows.vocabulary->size();
  data.windows = std::move(windows);
  return data;
}

/// The lines of `text`, in pieces of at most so many targets. Element n is the character n, its
/// target the one behind it.
std::vector<Dataset::Document> documents_in(std::string_view text, std::int64_t most) {
  std::vector<Dataset::Document> documents;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    const bool is_blank = text[begin] == '\n';
    const auto last = static_cast<std::int64_t>(end) - 1;
    for (auto first = static_cast<std::int64_t>(std::max<std::size_t>(begin, 1)) - 1;
         first < last && !is_blank;
         first += most)
      documents.push_back({first, std::min(most, last - first)});
    begin = end;
  }
  return documents;
}

/// The lines of `text`, each token's target the next one.
Dataset documents_of(const std::string& name,
                     const Memory& memory,
                     std::string_view text,
                     Dataset::Windows windows) {
  const auto documents =
      std::make_shared<const std::vector<Dataset::Document>>(documents_in(text, windows.positions));
  require(!documents->empty(), [&] {
    return name + ": " + std::to_string(memory.text.size()) +
           " bytes are too few: lines of nine tenths of them train, those of one tenth test";
  });
  windows.documents = documents;
  return windows_of(name, memory, text, std::move(windows));
}

/// Lines of the first nine tenths, and of the rest.
TrainTest documents_of(const std::string& name,
                       const Memory& memory,
                       const Dataset::Windows& windows) {
  const std::size_t nine_tenths = memory.text.size() * 9 / 10;
  const std::size_t line_end = memory.text.rfind('\n', nine_tenths);
  const std::size_t last = line_end == std::string_view::npos ? nine_tenths : line_end;
  return {documents_of(name, memory, memory.text.substr(0, last + 1), windows),
          documents_of(name, memory, memory.text.substr(last), windows)};
}

/// All that occur in the text, or all that there are.
std::shared_ptr<const Vocabulary> vocabulary_of(const Memory& memory, const TextOptions& options) {
  return std::make_shared<const Vocabulary>(options.all_bytes ? Vocabulary::of_all_bytes()
                                                              : Vocabulary(memory.text));
}

TrainTest samples_of(const std::string& name, const Memory& memory, const TextOptions& options) {
  require(options.positions >= 1,
          "text is cut into windows of a number of positions, which a model of sequences names: "
          "gpt:...,context=128");
  require(memory.text.size() <= std::numeric_limits<std::int32_t>::max(),
          name + ": a text has less than 2 GiB");
  if (options.lengths == Lengths::Bucket)
    return documents_of(
        name, memory, {options.positions, options.positions, vocabulary_of(memory, options)});
  const std::size_t train = memory.text.size() * 9 / 10;
  const std::size_t test = memory.text.size() - train;
  require(std::min(train, test) > static_cast<std::size_t>(options.positions), [&] {
    return name + ": " + std::to_string(memory.text.size()) + " bytes are too few for windows of " +
           std::to_string(options.positions) +
           " positions: nine tenths of them train, one tenth tests";
  });
  const auto vocabulary = vocabulary_of(memory, options);
  return {
      windows_of(name, memory, memory.text.substr(0, train), {options.positions, 1, vocabulary}),
      windows_of(name,
                 memory,
                 memory.text.substr(train),
                 {options.positions, options.positions, vocabulary})};
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
  return samples_of(name, kept(std::move(text)), options);
}

TrainTest read_text_samples(const std::string& file, const TextOptions& options) {
  return samples_of(file, mapped(file), options);
}

std::string text_of_targets(const Dataset& data) {
  require(data.windows.positions > 0 && !data.overlaps(),
          data.name + " is no text in windows side by side or documents");
  const auto bytes = data.targets.at(0).values.as<std::uint8_t>();
  if (data.has_documents()) {
    std::string text;
    for (const Dataset::Document& document : *data.windows.documents) {
      const auto own = bytes.subspan(static_cast<std::size_t>(document.first),
                                     static_cast<std::size_t>(document.positions));
      text.append(own.begin(), own.end());
    }
    return text;
  }
  const auto count = static_cast<std::size_t>(data.size() * data.windows.positions);
  return {bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(count)};
}

}  // namespace millrace
