// All processes find the same checkpoint, damage and differences, or none of them continues.
#include "training/checkpoint/resume.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "millrace/core/error.hpp"
#include "millrace/training/state.hpp"
#include "training/checkpoint/names.hpp"
#include "training/checkpoint/run_facts.hpp"
#include "training/update.hpp"

namespace millrace {
namespace {

constexpr std::string_view kGradient = "gradient";

/// What the first process that has something to say says; everybody hears the same.
std::string first_said(ProcessGroup& group, const std::string& mine) {
  for (const std::string& said : group.gather(mine, Label::Checkpoint))
    if (!said.empty()) return said;
  return {};
}

/// Folders to try, newest first, as the first process sees them.
std::vector<std::string> candidates(ProcessGroup& group,
                                    const std::string& path,
                                    FileSystem& files) {
  std::string mine;
  if (group.rank() == 0) {
    if (files.exists(path_in(path, kManifestFile))) {
      mine = path + "\n";
    } else {
      try {
        if (const std::string best = resolve_best(path, files); best != path) mine = best + "\n";
        for (const CheckpointPlace& place : find_checkpoints(path, files))
          mine += place.folder + "\n";
      } catch (const StorageError&) {
        mine.clear();  // a folder that cannot be read has no checkpoint to load
      } catch (const DataError&) {
        mine.clear();  // none is the best
      }
    }
  }
  std::istringstream lines(first_said(group, mine));
  std::vector<std::string> folders;
  for (std::string folder; std::getline(lines, folder);) folders.push_back(folder);
  return folders;
}

std::vector<std::string> newer_than(const std::string& folder, FileSystem& files) {
  std::vector<std::string> newer;
  for (const CheckpointPlace& place : find_checkpoints(whole_path(folder + "/.."), files)) {
    if (place.folder == folder) break;
    newer.push_back(place.folder);
  }
  return newer;
}

/// Verifies what this process hosts, and its share of the rest: all together verify everything.
std::optional<Checkpoint> open_shared(const std::string& folder,
                                      const TrainingState& state,
                                      ProcessGroup& group,
                                      FileSystem& files,
                                      std::string& fault) {
  const std::set<std::string> known(state.names().begin(), state.names().end());
  int number = 0;
  const auto wanted = [&](const CheckpointShard& shard) {
    if (number++ % group.size() == group.rank()) return true;
    return std::ranges::any_of(shard.tensors, [&](const CheckpointTensor& tensor) {
      return known.contains(tensor.name) && state.hosts(tensor.name);
    });
  };
  std::optional<Checkpoint> checkpoint;
  std::string mine;
  try {
    checkpoint.emplace(folder, wanted, files);
  } catch (const DataError& error) {
    mine = error.what();
  }
  fault = first_said(group, mine);
  if (!fault.empty()) return std::nullopt;
  const std::string seen = write_manifest(checkpoint->manifest());
  for (const std::string& theirs :
       group.gather(bytes_digest(std::as_bytes(std::span(seen))), Label::Checkpoint))
    if (theirs != bytes_digest(std::as_bytes(std::span(seen))))
      throw Mismatch("the processes see different checkpoints as " + folder);
  return checkpoint;
}

/// A list of differences in one sentence.
class Differences {
 public:
  void compare(const char* what, const std::string& saved, const std::string& own) {
    if (saved != own) add(what, saved, own);
  }

  void add(const std::string& what, const std::string& saved, const std::string& own) {
    text_ += (text_.empty() ? "" : "; ") + what + " differs: the checkpoint has " + saved +
             ", this training " + own;
  }

  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

std::string quoted(const std::string& text) {
  return "'" + text + "'";
}

bool is_gradient(const std::string& part) {
  return part == kGradient || part.starts_with(std::string(kGradient) + ".");
}

/// What an unfinished update holds beside the state; nothing between two updates.
std::vector<std::string> gradient_parts(const PartialUpdate& partial) {
  std::vector<std::string> parts;
  if (partial.micro_batches == 0) return parts;
  for (Replica copy{0}; copy.value < partial.copies; ++copy.value)
    parts.push_back(gradient_part(copy));
  return parts;
}

void compare_parameters(const Manifest& saved, const TrainingState& state, Differences& found) {
  std::map<std::pair<std::string, std::string>, const CheckpointTensor*> tensors;
  for (const CheckpointShard& shard : saved.shards)
    for (const CheckpointTensor& tensor : shard.tensors)
      tensors[{tensor.name, tensor.part}] = &tensor;
  const std::vector<std::string> sums = gradient_parts(saved.counters.partial);
  for (const std::string& name : state.names()) {
    std::vector<std::string> parts(state.parts(name).begin(), state.parts(name).end());
    std::erase(parts, kGradient);
    parts.insert(parts.end(), sums.begin(), sums.end());
    for (const std::string& part : parts) {
      const auto at = tensors.find({name, part});
      if (at == tensors.end())
        return found.add("the " + part + " of " + quoted(name), "none", "one");
      const CheckpointTensor& tensor = *at->second;
      if (!state.hosts(name)) {
        tensors.erase(at);
        continue;
      }
      const bool has_gradients_shape = is_gradient(part) || state.is_spread(name, part);
      const Tensor& here = state.read(name, has_gradients_shape ? kGradient : part);
      if (here.dims() != tensor.dims || here.dtype() != tensor.dtype)
        return found.add("the " + part + " of " + quoted(name),
                         std::string(name_of(tensor.dtype)) + " " + to_string(tensor.dims),
                         std::string(name_of(here.dtype())) + " " + to_string(here.dims()));
      tensors.erase(at);
    }
  }
  if (!tensors.empty())
    found.add(
        "the " + tensors.begin()->first.second + " of " + quoted(tensors.begin()->first.first),
        "one",
        "none");
}

std::string value_in(const Manifest& manifest, const std::string& name) {
  const auto found = manifest.settings.find(name);
  return found == manifest.settings.end() ? "unknown" : found->second;
}

/// An unfinished update is finished as it was begun, or not at all.
void require_goes_on(const Manifest& saved,
                     const Manifest& own,
                     const Pass& pass,
                     const std::string& folder) {
  const PartialUpdate& partial = saved.counters.partial;
  if (partial.micro_batches == 0) return;
  Differences found;
  found.compare(
      "order of accumulation", value_in(saved, "accumulation"), value_in(own, "accumulation"));
  found.compare("number of copies", std::to_string(partial.copies), std::to_string(pass.copies));
  found.compare("number of micro-batches of an update",
                value_in(saved, "micro_batches"),
                value_in(own, "micro_batches"));
  for (const char* name : {"batch_size", "slices"})
    found.compare(name, value_in(saved, name), value_in(own, name));
  if (found.text().empty() && partial.micro_batches % pass.micro_batches != 0)
    found.add("where a pass begins",
              "sums that end behind micro-batch " + std::to_string(partial.micro_batches),
              "passes of " + std::to_string(pass.micro_batches));
  if (!found.text().empty())
    throw Mismatch(folder + " was saved inside an update, behind " +
                   std::to_string(partial.micro_batches) + " of its " +
                   value_in(saved, "micro_batches") + " micro-batches: " + found.text() +
                   "; finish that update as it was begun, or go on from a checkpoint between two "
                   "updates");
}

void require_same(const Manifest& saved,
                  const Manifest& own,
                  const TrainingState& state,
                  ProcessGroup& group,
                  const std::string& folder) {
  Differences found;
  if (!saved.model.empty() && !own.model.empty())
    found.compare("model", quoted(saved.model), quoted(own.model));
  found.compare("optimizer", saved.optimizer, own.optimizer);
  found.compare("precision", saved.precision, own.precision);
  found.compare("seed", std::to_string(saved.counters.seed), std::to_string(own.counters.seed));
  if (found.text().empty()) compare_parameters(saved, state, found);
  const std::string said = first_said(group, found.text());
  if (!said.empty()) throw Mismatch(folder + " is of another training: " + said);
}

/// Where the data goes on, if mini-batches have another size now.
DataPosition position_of(const Manifest& saved, const Manifest& own) {
  const DataPosition position = saved.counters.position;
  const auto size_in = [](const Manifest& manifest) {
    const auto found = manifest.settings.find("batch_size");
    return found == manifest.settings.end() ? std::int64_t{0} : std::stoll(found->second);
  };
  const std::int64_t before = size_in(saved), now = size_in(own);
  if (position.batch == 0 || before == now || before <= 0 || now <= 0) return position;
  const std::int64_t samples = position.batch * before;
  if (samples % now != 0)
    throw Mismatch("batch_size " + std::to_string(now) +
                   " does not fit: the checkpoint was saved after " + std::to_string(samples) +
                   " samples of an epoch, in mini-batches of " + std::to_string(before));
  return {position.epoch, samples / now};
}

/// Sums in another order are other bits; whoever takes other settings knows that they count.
std::string end_of_bits(const Manifest& saved, const Manifest& own) {
  const std::string then = value_in(saved, "accumulation"), now = value_in(own, "accumulation");
  if (then == now) return {};
  return "the bits of an uninterrupted run end here: gradients were added in the order '" + then +
         "', and are now in '" + now + "'";
}

std::vector<std::string> changed_settings(const Manifest& saved, const Manifest& own) {
  std::vector<std::string> changed;
  std::map<std::string, std::string> all = own.settings;
  all.insert(saved.settings.begin(), saved.settings.end());
  for (const auto& [name, value] : all)
    if (value_in(own, name) != value_in(saved, name))
      changed.push_back(name + ": " + value_in(own, name) + ", was " + value_in(saved, name));
  return changed;
}

std::vector<std::string> warnings_of(const std::map<std::string, std::string>& then,
                                     ProcessGroup& group) {
  std::string mine;
  for (const auto& [name, value] : machine_facts()) {
    const auto found = then.find(name);
    if (found != then.end() && found->second != value)
      mine += (mine.empty() ? "" : "; ") + name + ": " + value + ", was " + found->second;
  }
  const std::string said = first_said(group, mine);
  if (said.empty()) return {};
  return {"bits may differ from those of an uninterrupted run from here on: " + said};
}

/// Copies and tied weights each get what their own sums were.
void restore_gradients(TrainingState& state, const Checkpoint& checkpoint) {
  zero_gradients(state);
  if (checkpoint.manifest().counters.partial.micro_batches == 0) return;
  for (int rank = 0; rank < state.ranks(); ++rank)
    for (StateEntry& entry : state.entries(Rank{rank})) {
      const Tensor sums = checkpoint.read(entry.parameter->name, gradient_part(entry.replica));
      std::memcpy(entry.parameter->gradient.data(), sums.data(), sums.bytes());
    }
}

void restore(TrainingState& state, const Checkpoint& checkpoint) {
  for (const CheckpointShard& shard : checkpoint.manifest().shards)
    for (const CheckpointTensor& tensor : shard.tensors)
      if (state.hosts(tensor.name) && !is_gradient(tensor.part))
        state.write(tensor.name, checkpoint.read(tensor.name, tensor.part), tensor.part);
  restore_gradients(state, checkpoint);
}

}  // namespace

Resumed resume(TrainingState& state,
               ProcessGroup& group,
               const Manifest& own,
               const Pass& pass,
               const std::string& path,
               FileSystem& files) {
  const std::string place = whole_path(path);
  Resumed resumed;
  for (const std::string& folder : candidates(group, place, files)) {
    std::string fault;
    const std::optional<Checkpoint> checkpoint = open_shared(folder, state, group, files, fault);
    if (!checkpoint) {
      if (folder == place) throw DataError(fault);
      resumed.report.damaged.push_back({folder, fault});
      continue;
    }
    const Manifest& saved = checkpoint->manifest();
    require_same(saved, own, state, group, folder);
    require_goes_on(saved, own, pass, folder);
    TrainingCounters counters = saved.counters;
    counters.position = position_of(saved, own);
    restore(state, *checkpoint);
    state.set_counters(counters);
    resumed.report.folder = folder;
    if (group.rank() == 0 && !folder.starts_with(place))  // it was resolved
      resumed.report.superseded = newer_than(folder, files);
    resumed.report.changed = changed_settings(saved, own);
    resumed.report.warnings = warnings_of(checkpoint->run(), group);
    if (const std::string end = end_of_bits(saved, own); !end.empty())
      resumed.report.warnings.push_back(end);
    resumed.data = saved.data;
    return resumed;
  }
  if (resumed.report.damaged.empty()) throw DataError(place + ": has no checkpoint");
  throw DataError(resumed.report.damaged.front().fault + "; no other checkpoint in " + place +
                  " can be loaded");
}

}  // namespace millrace
