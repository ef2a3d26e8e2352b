// The fields of a kind are listed once, for the writer and the reader, in header order; unused
// bytes of the kind's part are zero.
#include "transport/wire/control.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>

#include "transport/wire/numbers.hpp"

namespace millrace {

namespace {

constexpr std::int32_t kMostNumber = std::numeric_limits<std::int32_t>::max();
constexpr std::uint64_t kMostCount = std::numeric_limits<std::uint64_t>::max();
constexpr auto kOldest = std::chrono::nanoseconds(std::int64_t{1} << 60);
constexpr auto kLongest = std::chrono::nanoseconds(std::int64_t{1} << 55);  // a year

bool is_shown(char letter) {
  return letter == 0 || (letter >= ' ' && letter <= '~');
}

/// Writes fields one after the other.
class Writer {
 public:
  explicit Writer(FrameBytes& bytes) : bytes_(bytes) {}

  template <class Wire, class T>
  void number(T& value, T least, T most) {
    require(value >= least && value <= most, [&] {
      return "a field of a control frame is " + std::to_string(value) + ", but " +
             std::to_string(least) + " to " + std::to_string(most);
    });
    wire::put(bytes_, at_, static_cast<Wire>(value));
    at_ += sizeof(Wire);
  }

  template <class T>
  void word(T& value, T last) {
    auto bits = static_cast<int>(value);
    number<std::uint8_t>(bits, 0, static_cast<int>(last));
  }

  void letters(std::span<char> text) {
    for (const char letter : text) wire::put(bytes_, at_++, is_shown(letter) ? letter : '?');
  }

 private:
  FrameBytes& bytes_;
  std::size_t at_ = kEnvelopeBytes;
};

/// Reads them, and remembers what is wrong with the first that is.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class Wire, class T>
  void number(T& value, T least, T most) {
    value = static_cast<T>(wire::get<Wire>(bytes_, at_));
    at_ += sizeof(Wire);
    if (value < least || value > most) refuse(Refusal::Bounds);
  }

  template <class T>
  void word(T& value, T last) {
    const auto bits = wire::get<std::uint8_t>(bytes_, at_++);
    if (bits > static_cast<std::uint8_t>(last)) return refuse(Refusal::Enumeration);
    value = static_cast<T>(bits);
  }

  /// They become part of a report: printable ones, then zeros.
  void letters(std::span<char> text) {
    bool ended = false;
    for (char& letter : text) {
      letter = wire::get<char>(bytes_, at_++);
      if (!is_shown(letter) || (letter != 0 && ended)) refuse(Refusal::Bounds);
      ended = ended || letter == 0;
    }
  }

  /// What is wrong; all of the kind's part must have been read or be zero.
  [[nodiscard]] Refusal end() const {
    const auto rest = bytes_.subspan(at_, kChecksumAt - at_);
    const bool zero = std::ranges::all_of(rest, [](std::byte byte) { return byte == std::byte{}; });
    return wrong_ == Refusal::None && !zero ? Refusal::Reserved : wrong_;
  }

 private:
  void refuse(Refusal why) {
    if (wrong_ == Refusal::None) wrong_ = why;
  }

  std::span<const std::byte> bytes_;
  std::size_t at_ = kEnvelopeBytes;
  Refusal wrong_ = Refusal::None;
};

template <class Fields>
void count(Fields& fields, std::uint64_t& value) {
  fields.template number<std::uint64_t>(value, std::uint64_t{0}, kMostCount);
}

/// What a rank does is said in any case: the nearest that can be said.
template <class Wire, class Fields, class T>
void nearest(Fields& fields, T& value, T least, T most) {
  if (std::is_same_v<Fields, Writer>) value = std::clamp(value, least, most);
  fields.template number<Wire>(value, least, most);
}

template <class Fields>
void duration(Fields& fields, std::chrono::nanoseconds& value, std::chrono::nanoseconds most) {
  std::int64_t time = value.count();
  nearest<std::int64_t>(fields, time, std::int64_t{0}, std::int64_t{most.count()});
  value = std::chrono::nanoseconds(time);
}

template <class Wire, class Fields, class Id>
void id(Fields& fields, Id& value) {
  constexpr std::int64_t kMost = std::numeric_limits<Wire>::max();
  constexpr auto kLast = static_cast<std::int32_t>(std::min<std::int64_t>(kMost, kMostNumber));
  nearest<Wire>(fields, value.value, 0, kLast);
}

template <class Fields>
void list(Fields& fields, Probe& probe) {
  count(fields, probe.sequence);
  count(fields, probe.question);
  fields.template number<std::int32_t>(probe.obeyed, 0, kMostNumber);
}

template <class Fields>
void list(Fields& fields, Ack& ack) {
  count(fields, ack.question);
}

template <class Fields>
void list(Fields& fields, Nack& nack) {
  count(fields, nack.from);
  fields.template number<std::int32_t>(nack.number, 1, kMostNumber);
}

template <class Fields>
void list(Fields& fields, Progress& progress) {
  Activity& activity = progress.activity;
  duration(fields, progress.age, kOldest);
  fields.word(activity.doing, Doing::Left);
  fields.word(activity.of_unit, true);
  fields.word(activity.sent, true);
  fields.template number<std::int32_t>(activity.peer.value, -1, kMostNumber);
  fields.letters(activity.what);
  count(fields, activity.count);
  duration(fields, activity.longest, kLongest);
  duration(fields, activity.usual, kLongest);
  MessageTag& tag = activity.tag;
  count(fields, tag.step);
  fields.word(tag.direction, Direction::Collective);
  id<std::uint8_t>(fields, tag.replica);
  fields.word(tag.edge, std::numeric_limits<std::uint8_t>::max());
  id<std::uint16_t>(fields, tag.stage);
  id<std::uint32_t>(fields, tag.micro_batch);
  id<std::uint16_t>(fields, tag.slice);
}

template <class Fields>
void list(Fields& fields, Abort& abort) {
  fields.word(abort.cause, FailureCause::Protocol);
}

/// The others say all by their kind and their text.
template <class Fields, class Kind>
void list(Fields& /*fields*/, Kind& /*control*/) {}

template <class Kind>
constexpr bool kHasText = requires(Kind control) {
  control.text;
};

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

template <class Kind>
Refusal read(std::span<const std::byte> header, std::span<const std::byte> text, Kind& control) {
  Reader reader(header);
  list(reader, control);
  if (const Refusal wrong = reader.end(); wrong != Refusal::None) return wrong;
  const auto [bytes, hash] = payload_of(header);
  if (bytes != text.size() || (!kHasText<Kind> && bytes != 0)) return Refusal::Size;
  if (hash != payload_hash(text)) return Refusal::Payload;
  if constexpr (kHasText<Kind>)
    control.text.assign(reinterpret_cast<const char*>(text.data()), text.size());
  return Refusal::None;
}

/// The empty struct of a kind; nothing where it carries a tensor.
std::optional<Control> control_of(FrameKind kind) {
  std::optional<Control> found;
  const auto try_one = [&]<class Kind>(std::type_identity<Kind>) {
    if (Kind::kKind == kind) found = Kind();
  };
  [&]<class... Kinds>(std::type_identity<std::variant<Kinds...>>) {
    (try_one(std::type_identity<Kinds>()), ...);
  }(std::type_identity<Control>());
  return found;
}

}  // namespace

ControlBytes encode(const Envelope& envelope, const Control& control) {
  ControlBytes bytes;
  std::visit(
      [&]<class Kind>(Kind kind) {
        if constexpr (kHasText<Kind>) bytes.text = std::move(kind.text);
        bytes.header = begin_frame(
            Kind::kKind, envelope, {bytes.text.size(), payload_hash(bytes_of(bytes.text))});
        Writer writer(bytes.header);
        list(writer, kind);
      },
      control);
  repair_checksum(bytes.header);
  return bytes;
}

Refusal decode(std::span<const std::byte> header,
               std::span<const std::byte> text,
               const FrameExpectation& expected,
               Envelope& envelope,
               Control& control) {
  if (const Refusal wrong = check_envelope(header); wrong != Refusal::None) return wrong;
  if (const Refusal wrong = check_connection(header, expected); wrong != Refusal::None)
    return wrong;
  if (text.size() > expected.largest_payload) return Refusal::Size;
  auto found = control_of(*claimed_kind(header));
  if (!found) return Refusal::State;
  const Refusal wrong = std::visit([&](auto& kind) { return read(header, text, kind); }, *found);
  if (wrong != Refusal::None) return wrong;
  envelope = envelope_of(header);
  control = std::move(*found);
  return Refusal::None;
}

}  // namespace millrace
