// A sentence for a person that keeps the identity of the parameters it names. The library calls a
// parameter by its own name, `micro_batches`; who has other names for them, as a command has flags,
// reads the sentence with these.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/core/error.hpp"

namespace millrace {

/// Text in which the names of parameters stand apart: `named("ranks") + " is 0; it is at least 1"`.
/// Cost: the length of the text. Thread-safety: externally synchronised.
class Sentence {
 public:
  /// What the reader calls the parameter of that name.
  using Spelling = std::function<std::string(std::string_view name)>;

  // Sentences are written as sums of texts and names, like strings.
  Sentence(std::string text) {  // NOLINT(google-explicit-constructor)
    parts_.push_back({std::move(text), false});
  }

  Sentence(const char* text)  // NOLINT(google-explicit-constructor)
      : Sentence(std::string(text)) {}

  /// With the names as the library has them.
  [[nodiscard]] std::string text() const {
    return text([](std::string_view name) { return std::string(name); });
  }

  /// With the reader's names.
  [[nodiscard]] std::string text(const Spelling& spelling) const {
    std::string whole;
    for (const Part& part : parts_) whole += part.is_name ? spelling(part.text) : part.text;
    return whole;
  }

  Sentence& operator+=(const Sentence& more) {
    parts_.insert(parts_.end(), more.parts_.begin(), more.parts_.end());
    return *this;
  }

  friend Sentence operator+(Sentence left, const Sentence& right) {
    left += right;
    return left;
  }

  /// The name of a parameter.
  [[nodiscard]] friend Sentence named(std::string_view name) {
    Sentence sentence{std::string(name)};
    sentence.parts_.front().is_name = true;
    return sentence;
  }

 private:
  struct Part {
    std::string text;
    bool is_name = false;
  };

  std::vector<Part> parts_;
};

Sentence named(std::string_view name);

/// What an exception is besides, when its sentence names parameters.
class NamesParameters {
 public:
  virtual ~NamesParameters() = default;

  [[nodiscard]] const Sentence& sentence() const { return *sentence_; }

 protected:
  explicit NamesParameters(Sentence sentence)
      : sentence_(std::make_shared<const Sentence>(std::move(sentence))) {}
  NamesParameters(const NamesParameters&) = default;
  NamesParameters& operator=(const NamesParameters&) = default;

 private:
  std::shared_ptr<const Sentence> sentence_;  // shared by the copies that a throw makes
};

/// An InvalidArgument that keeps its sentence. Parameters have the library's names in what().
class InvalidParameter : public InvalidArgument, public NamesParameters {
 public:
  explicit InvalidParameter(const Sentence& sentence)
      : InvalidArgument(sentence.text()), NamesParameters(sentence) {}
};

/// The sentence of an exception, with parameters where it keeps them.
[[nodiscard]] inline Sentence sentence_of(const std::exception& error) {
  const auto* named = dynamic_cast<const NamesParameters*>(&error);
  return named == nullptr ? Sentence(error.what()) : named->sentence();
}

/// Throws InvalidParameter with `sentence` unless `condition` holds.
inline void require(bool condition, const Sentence& sentence) {
  if (!condition) throw InvalidParameter(sentence);
}

}  // namespace millrace
