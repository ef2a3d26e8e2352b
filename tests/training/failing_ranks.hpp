// Ranks of which one fails in the fifth step of a small training: what the tests of saving behind
// it share.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/transport/in_process.hpp"
#include "tests/training/faulty_files.hpp"
#include "tests/training/saved_runs.hpp"

namespace millrace::testing_training {

inline constexpr int kSavedRanks = 3;
inline constexpr int kStep = 4;  // fails: so many ran before it
inline const char* const kSavedPlace = "/step-0000000004";

/// A message that a rank sends or takes.
struct Message {
  bool is_sent = false;
  MessageTag tag;
};
using Spoil = std::function<void(const Message&)>;

/// An endpoint that throws, or whatever `spoil` does, before a message.
class Spoiled final : public Endpoint {
 public:
  Spoiled(Endpoint& endpoint, Spoil spoil) : endpoint_(endpoint), spoil_(std::move(spoil)) {}

  [[nodiscard]] Rank rank() const override { return endpoint_.rank(); }
  [[nodiscard]] int world() const override { return endpoint_.world(); }
  void send(Rank to, const MessageTag& tag, TensorList payload) override {
    if (spoil_) spoil_({true, tag});
    endpoint_.send(to, tag, std::move(payload));
  }
  [[nodiscard]] TensorList receive(Rank from, const MessageTag& tag, Deadline deadline) override {
    if (spoil_) spoil_({false, tag});
    return endpoint_.receive(from, tag, deadline);
  }
  void cancel(const std::string& reason) noexcept override { endpoint_.cancel(reason); }
  void leave(Deadline deadline) override { endpoint_.leave(deadline); }

 private:
  Endpoint& endpoint_;
  Spoil spoil_;
};

/// How a rank takes part.
struct Part {
  TestOptions options;
  Spoil spoil = {};
  std::function<void(Trainer&)> prepare = {};  // hooks of its trainer
  ModelSpec model = parse_model(kSavedModel);
  int copies = 1;  // of the pipeline
  std::function<void(Trainer&, const Dataset&)> fit = [](Trainer& trainer, const Dataset& data) {
    trainer.fit(data);
  };
};

/// What became of a rank.
struct End {
  std::string failure;
  std::vector<SaveReport> saves;

  [[nodiscard]] const SaveReport& last() const { return saves.back(); }
};

inline End end_of(Trainer& trainer, const Part& part, const Dataset& data) {
  End end;
  trainer.on_save = [&](const SaveReport& report) { end.saves.push_back(report); };
  try {
    part.fit(trainer, data);
  } catch (const std::exception& error) {
    end.failure = error.what();
  }
  return end;
}

/// Trains on so many ranks, each a thread with a process' means, until all have failed.
inline std::vector<End> fail_on_ranks(int count, const std::function<Part(int)>& part_of) {
  const Dataset data = first_digits(60);
  InProcessHub hub(count);
  std::vector<End> ends(static_cast<std::size_t>(count));
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < count; ++rank)
    ranks.emplace_back([&, rank, raw = hub.endpoint(Rank{rank})] {
      const Part part = part_of(rank);
      Spoiled endpoint(*raw, part.spoil);
      ProcessGroup group(endpoint, std::chrono::seconds(30));
      try {
        Trainer trainer(parts_on(part.options, endpoint, group, part.model, part.copies));
        if (part.prepare) part.prepare(trainer);
        ends[static_cast<std::size_t>(rank)] = end_of(trainer, part, data);
      } catch (const Crashed&) {
        return;
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
        endpoint.cancel(error.what());
      }
    });
  ranks.clear();
  return ends;
}

/// The files that one process saves behind so many steps, and the weights at the end of the run.
struct Reference {
  std::map<std::string, std::string> files;
  std::string weights;

  explicit Reference(const std::string& folder) {
    const Dataset data = first_digits(60);
    Trainer trainer = trainer_of(parse_model(kSavedModel), saved_options(folder, 1));
    fit_steps(trainer, data, kStep);
    files = files_in(folder + kSavedPlace);
    Trainer whole = trainer_of(parse_model(kSavedModel), saved_options(folder + "/whole", 1));
    whole.fit(data);
    weights = whole.weights_hash();
  }
};

inline std::string weights_resumed(const TestOptions& options,
                                   const ModelSpec& model = parse_model(kSavedModel)) {
  Trainer trainer(model, options.pipeline, options);
  trainer.resume(options.save.folder);
  trainer.fit(first_digits(60));
  return trainer.weights_hash();
}

inline bool is_pass(const Message& message, Direction direction) {
  return message.tag.direction == direction && message.tag.step == kStep;
}

inline bool is_collective(const Message& message, Label label) {
  return is_pass(message, Direction::Collective) &&
         message.tag.slice.value == static_cast<std::int32_t>(label);
}

inline void fail() {
  throw Error("the floor gave way");
}

inline Spoil spoil_where(const std::function<bool(const Message&)>& where) {
  return [where](const Message& message) {
    if (where(message)) fail();
  };
}

/// The parts of ranks of which one fails in its pass.
inline Part failing_part(const std::string& place, int rank, int failing = 1) {
  Part part{saved_options(place, kSavedRanks)};
  if (rank == failing)
    part.spoil =
        spoil_where([](const Message& m) { return m.is_sent && is_pass(m, Direction::Backward); });
  return part;
}

}  // namespace millrace::testing_training
