// Exceptions of the library, and messages that keep the parameters they name apart. Functions whose
// question may have the answer "no" (verify, parse, simulate) return it; an exception means that a
// call failed.
#pragma once

#include <concepts>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace {

/// Base of all exceptions of the library.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A precondition does not hold; the message names the parameter, its value and the bound.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// Data is damaged or has another form; the message names file, position and expected form.
class DataError : public Error {
 public:
  using Error::Error;
};

/// A peer was lost, a deadline passed, or a frame was corrupt. The endpoint is unusable afterwards.
class TransportError : public Error {
 public:
  using Error::Error;
};

/// A wait ended: another process failed first, or a stop was requested.
class Cancelled : public TransportError {
 public:
  using TransportError::TransportError;
};

/// Two ranks differ in a field that must be equal; the message names it.
class Mismatch : public Error {
 public:
  using Error::Error;
};

/// Throws InvalidArgument with `message` unless `condition` holds.
inline void require(bool condition, const std::string& message) {
  if (!condition) throw InvalidArgument(message);
}

inline void require(bool condition, const char* message) {
  if (!condition) throw InvalidArgument(message);
}

/// The same for hot code: `message()` is called only if `condition` does not hold.
template <std::invocable Message>
void require(bool condition, const Message& message) {
  if (!condition) throw InvalidArgument(message());
}

/// A message that marks the parameters it names: `named("ranks") + " is 0; it is at least 1"`. The
/// library writes `micro_batches`; a command writes its flag instead.
/// Cost: the length of the text. Thread-safety: externally synchronised.
class ParameterText {
 public:
  /// The reader's name of a parameter.
  using Spelling = std::function<std::string(std::string_view name)>;

  // Implicit: messages are sums of strings and names.
  ParameterText(std::string text) {  // NOLINT(google-explicit-constructor)
    parts_.push_back({std::move(text), false});
  }

  ParameterText(const char* text)  // NOLINT(google-explicit-constructor)
      : ParameterText(std::string(text)) {}

  /// With the library's names.
  [[nodiscard]] std::string text() const {
    return text([](std::string_view name) { return std::string(name); });
  }

  /// With the reader's names.
  [[nodiscard]] std::string text(const Spelling& spelling) const {
    std::string whole;
    for (const Part& part : parts_) whole += part.is_name ? spelling(part.text) : part.text;
    return whole;
  }

  ParameterText& operator+=(const ParameterText& more) {
    parts_.insert(parts_.end(), more.parts_.begin(), more.parts_.end());
    return *this;
  }

  friend ParameterText operator+(ParameterText left, const ParameterText& right) {
    left += right;
    return left;
  }

  /// A parameter, by the library's name.
  [[nodiscard]] friend ParameterText named(std::string_view name) {
    ParameterText parameter{std::string(name)};
    parameter.parts_.front().is_name = true;
    return parameter;
  }

 private:
  struct Part {
    std::string text;
    bool is_name = false;
  };

  std::vector<Part> parts_;
};

ParameterText named(std::string_view name);

/// Second base of exceptions whose message names parameters.
class NamesParameters {
 public:
  virtual ~NamesParameters() = default;

  [[nodiscard]] const ParameterText& message() const { return *message_; }

 protected:
  explicit NamesParameters(ParameterText message)
      : message_(std::make_shared<const ParameterText>(std::move(message))) {}
  NamesParameters(const NamesParameters&) = default;
  NamesParameters& operator=(const NamesParameters&) = default;

 private:
  std::shared_ptr<const ParameterText> message_;  // shared by the copies that a throw makes
};

/// An InvalidArgument that names parameters; what() has the library's names.
class InvalidParameter : public InvalidArgument, public NamesParameters {
 public:
  explicit InvalidParameter(const ParameterText& message)
      : InvalidArgument(message.text()), NamesParameters(message) {}
};

/// The message of an exception, with its parameters marked if it has them.
[[nodiscard]] inline ParameterText parameter_text(const std::exception& error) {
  const auto* named = dynamic_cast<const NamesParameters*>(&error);
  return named == nullptr ? ParameterText(error.what()) : named->message();
}

/// Throws InvalidParameter with `message` unless `condition` holds.
inline void require(bool condition, const ParameterText& message) {
  if (!condition) throw InvalidParameter(message);
}

}  // namespace millrace
