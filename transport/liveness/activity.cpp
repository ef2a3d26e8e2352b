#include "transport/liveness/activity.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "transport/mailbox/rank_words.hpp"

namespace millrace {

namespace {

constexpr std::uint64_t kLongest = std::uint64_t{1} << 55U;  // nanoseconds: a year

std::string_view text_of(const std::array<char, 16>& what) {
  return {what.data(), ::strnlen(what.data(), what.size())};
}

/// "F of stage 2, micro-batch 3 of step 7", "STEP of step 7".
std::string place_of(std::string_view what, const MessageTag& tag, bool of_unit) {
  const std::string action = std::string(what) + " of ";
  if (!of_unit) return action + name_of_step(tag.step);
  MessageTag named = tag;
  named.direction = Direction::Forward;
  const std::string words = to_string(named);  // "activation for stage ..."
  return action + words.substr(words.find("stage "));
}

}  // namespace

Activity activity_of(const Work& work) {
  Activity activity;
  activity.doing = work.what.empty() ? Doing::Pauses : Doing::Works;
  activity.of_unit = work.of_unit;
  activity.pipeline = work.pipeline;
  work.what.copy(activity.what.data(), activity.what.size());
  activity.tag.step = work.step;
  activity.tag.replica = work.replica;
  activity.tag.stage = work.stage;
  activity.tag.micro_batch = work.micro_batch;
  activity.tag.slice = work.slice;
  return activity;
}

std::string to_string(const Activity& activity) {
  switch (activity.doing) {
    case Doing::Starts:
      return "starts";
    case Doing::Works:
      return "is in " + place_of(text_of(activity.what), activity.tag, activity.of_unit);
    case Doing::Pauses:
      if (activity.peer.value < 0)
        return "is between the actions" + place_of({}, activity.tag, false);
      return std::string(activity.sent ? "has sent " : "works on ") + to_string(activity.tag) +
             (activity.sent ? " to " : " from ") + words_of(activity.peer);
    case Doing::Waits:
      return "waits for " + to_string(activity.tag) + " from " + words_of(activity.peer);
    case Doing::Departs:
      return "leaves";
    case Doing::Left:
      return "has left";
  }
  return "?";
}

std::string action_of(const Activity& activity) {
  if (activity.doing == Doing::Works)
    return place_of(text_of(activity.what), activity.tag, activity.of_unit);
  const bool message = activity.doing == Doing::Waits ||
                       (activity.doing == Doing::Pauses && activity.peer.value >= 0);
  if (!message) return "the next action";
  if (activity.tag.direction == Direction::Collective) return to_string(activity.tag);
  const bool forward = activity.tag.direction == Direction::Forward;
  // A message is named after the stage that receives it.
  if (activity.sent) return "the send of the " + to_string(activity.tag);
  return place_of(forward ? "RECV_F" : "RECV_B", activity.tag, true);
}

ActivityWords encode(const Activity& activity) {
  const auto wide = [](auto value) { return static_cast<std::uint64_t>(value); };
  const auto low = [](std::int32_t value) {
    return std::uint64_t{static_cast<std::uint32_t>(value)};
  };
  ActivityWords words{};
  words[0] = activity.count;
  words[1] = wide(activity.since.time_since_epoch().count());
  const bool usual = activity.usual.count() != 0;
  words[2] = wide((usual ? activity.usual : activity.longest).count());
  std::memcpy(&words[3], activity.what.data(), activity.what.size());
  words[5] = activity.tag.step;
  words[6] = wide(activity.doing) | wide(activity.tag.direction) << 8U |
             wide(activity.of_unit ? 1 : 0) << 16U | wide(activity.sent ? 1 : 0) << 17U |
             wide(usual ? 1 : 0) << 18U | low(activity.peer.value) << 32U;
  words[7] = low(activity.tag.stage.value) | low(activity.tag.micro_batch.value) << 32U;
  // Two replicas of the longest that fits have more ranks than a frame can name.
  const std::uint64_t pipeline = activity.pipeline <= 0xFFFF ? wide(activity.pipeline) : 0;
  words[8] = low(activity.tag.slice.value) | low(activity.tag.replica.value & 0xFF) << 32U |
             wide(activity.tag.edge) << 40U | pipeline << 48U;
  return words;
}

Activity decode(const ActivityWords& words) {
  const auto part = [&](std::size_t word, unsigned shift) {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(words[word] >> shift));
  };
  Activity activity;
  activity.count = words[0];
  activity.since = std::chrono::steady_clock::time_point(std::chrono::nanoseconds(words[1]));
  const bool usual = ((words[6] >> 18U) & 1U) != 0;
  (usual ? activity.usual : activity.longest) =
      std::chrono::nanoseconds(std::min<std::uint64_t>(words[2], kLongest));
  std::memcpy(activity.what.data(), &words[3], activity.what.size());
  for (char& letter : activity.what)
    if (letter != 0 && (letter < ' ' || letter > '~')) letter = '?';
  activity.tag.step = words[5];
  activity.doing = static_cast<Doing>(std::min<std::uint64_t>(words[6] & 0xFFU, 5));
  activity.tag.direction =
      static_cast<Direction>(std::min<std::uint64_t>((words[6] >> 8U) & 0xFFU, 2));
  activity.of_unit = ((words[6] >> 16U) & 1U) != 0;
  activity.sent = ((words[6] >> 17U) & 1U) != 0;
  activity.peer = Rank{part(6, 32)};
  activity.tag.stage = Stage{part(7, 0)};
  activity.tag.micro_batch = MicroBatch{part(7, 32)};
  activity.tag.slice = Slice{part(8, 0)};
  activity.tag.replica = Replica{part(8, 32) & 0xFF};
  activity.tag.edge = static_cast<std::uint8_t>(words[8] >> 40U);
  activity.pipeline = part(8, 48) & 0xFFFF;
  return activity;
}

}  // namespace millrace
