// The exception types of the library. A value answers "no" (verify, parse, simulate return values);
// an exception says "this call could not do its job".
#pragma once

#include <concepts>
#include <stdexcept>
#include <string>

namespace millrace {

/// Root of everything the library throws.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The caller broke a documented precondition; the message names what, the value and the bound.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// Data that was read is damaged or not of the promised form (file, position, expectation).
class DataError : public Error {
 public:
  using Error::Error;
};

/// A peer was lost, a deadline passed, or a frame was corrupt. The endpoint is unusable afterwards.
class TransportError : public Error {
 public:
  using Error::Error;
};

/// A wait ended because somebody else failed first or asked to stop.
class Cancelled : public TransportError {
 public:
  using TransportError::TransportError;
};

/// Two workers disagree about something that must be equal; the message names the field.
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

/// The same where it is asked often: `message()` makes the sentence only when it is needed.
template <std::invocable Message>
void require(bool condition, const Message& message) {
  if (!condition) throw InvalidArgument(message());
}

}  // namespace millrace
