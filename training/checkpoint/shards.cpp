// Cutting the state into files, and copying it there.
#include "training/checkpoint/shards.hpp"

#include <algorithm>
#include <map>

#include "millrace/core/error.hpp"
#include "millrace/training/state.hpp"
#include "training/checkpoint/names.hpp"

namespace millrace {
namespace {

constexpr std::string_view kGradient = "gradient";
constexpr std::string_view kValue = "value";

bool is_number(std::string_view word) {
  return !word.empty() && std::ranges::all_of(word, [](char c) { return c >= '0' && c <= '9'; });
}

/// The parts of a parameter that go to one kind of file.
std::vector<std::string> parts_of(const TrainingState& state,
                                  const std::string& name,
                                  bool values) {
  std::vector<std::string> parts;
  for (const std::string& part : state.parts(name))
    if (part != kGradient && (part == kValue) == values) parts.push_back(part);
  return parts;
}

std::string key_of(const SavedTensor& tensor) {
  return tensor_key({tensor.name, tensor.part, {}, {}, {}});
}

}  // namespace

std::string shard_stem(std::string_view name) {
  std::size_t end = name.size();
  for (std::size_t begin = 0; begin < name.size();) {
    const std::size_t dot = std::min(name.find('.', begin), name.size());
    if (is_number(name.substr(begin, dot - begin))) {
      end = dot;
      break;
    }
    begin = dot + 1;
  }
  const std::string stem(name.substr(0, end));
  const auto plain = [](char letter) {
    return (letter >= 'a' && letter <= 'z') || (letter >= '0' && letter <= '9') || letter == '.' ||
           letter == '_' || letter == '-';
  };
  // Capitals too become a digest: some file systems do not tell them from small letters.
  if (stem.size() <= 200 && std::ranges::all_of(stem, plain) && !stem.starts_with('.') &&
      !stem.starts_with("digest-"))
    return stem;
  return "digest-" + bytes_digest(std::as_bytes(std::span(stem)));
}

namespace {

/// By shard, the parameters that this process writes of those that it `hosts`.
template <class Hosts>
std::vector<std::vector<std::string>> names_to_write(const TrainingState& state,
                                                     const Hosts& hosts,
                                                     ProcessGroup& group) {
  std::string hosted;
  for (const std::string& name : state.names()) hosted += hosts(name) ? '1' : '0';
  const std::vector<std::string> said = group.gather(hosted, Label::Checkpoint);
  std::map<std::string, std::vector<std::size_t>> numbers_of;
  for (std::size_t i = 0; i < state.names().size(); ++i)
    numbers_of[shard_stem(state.names()[i])].push_back(i);
  std::vector<std::vector<std::string>> mine;
  for (const auto& of_stem : numbers_of) {
    const std::vector<std::size_t>& numbers = of_stem.second;  // clang 14 captures no binding
    const auto writer = std::ranges::find_if(said, [&](const std::string& theirs) {
      return std::ranges::all_of(numbers, [&](std::size_t i) { return theirs[i] == '1'; });
    });
    require(writer != said.end(), [&] {
      return "parameters '" + state.names()[numbers.front()] + "' and '" +
             state.names()[numbers.back()] +
             "' would share a file of a checkpoint, but live in different processes; give them "
             "names that differ before the first number";
    });
    if (writer - said.begin() != group.rank()) continue;
    mine.emplace_back();
    for (const std::size_t i : numbers) mine.back().push_back(state.names()[i]);
  }
  return mine;
}

/// Of what is spread the gradient has the dtype and shape.
SavedTensor saved_part(const TrainingState& state,
                       const std::string& name,
                       const std::string& part) {
  const bool is_spread = state.is_spread(name, part);
  return {name, part, &state.read(name, is_spread ? "gradient" : part), is_spread};
}

}  // namespace

void Snapshot::add(std::string file, std::vector<SavedTensor> tensors) {
  if (tensors.empty()) return;
  std::vector<SafetensorsPlace> places;
  for (const SavedTensor& tensor : tensors)
    places.push_back({key_of(tensor), tensor.source->dtype(), tensor.source->dims()});
  files_.push_back(
      {file + ".safetensors", SafetensorsImage(std::move(places)), std::move(tensors)});
}

void Snapshot::take() {
  for (File& file : files_)
    for (const SavedTensor& tensor : file.tensors)
      if (!tensor.is_spread) file.image.fill(key_of(tensor), *tensor.source);
}

void Snapshot::fill(std::string_view name, std::string_view part, const Tensor& contents) {
  for (File& file : files_)
    for (const SavedTensor& tensor : file.tensors)
      if (tensor.name == name && tensor.part == part) file.image.fill(key_of(tensor), contents);
}

Snapshot snapshot_of(const TrainingState& state, ProcessGroup& group) {
  const auto hosts = [&](const std::string& name) { return state.hosts(name); };
  Snapshot snapshot;
  for (const std::vector<std::string>& names : names_to_write(state, hosts, group))
    for (const bool values : {true, false}) {
      std::vector<SavedTensor> tensors;
      for (const std::string& name : names)
        for (const std::string& part : parts_of(state, name, values))
          tensors.push_back(saved_part(state, name, part));
      snapshot.add(shard_stem(names.front()) + (values ? ".weights" : ".optimizer"),
                   std::move(tensors));
    }
  return snapshot;
}

Snapshot gradients_of(const TrainingState& state, std::int64_t copies, ProcessGroup& group) {
  Snapshot snapshot;
  for (Replica copy{0}; copy.value < copies; ++copy.value) {
    std::map<std::string, const Tensor*> gradients;
    for (int rank = 0; rank < state.ranks(); ++rank)
      for (const StateEntry& entry : state.entries(Rank{rank}))
        if (entry.replica == copy) gradients[entry.parameter->name] = &entry.parameter->gradient;
    const auto hosts = [&](const std::string& name) { return gradients.contains(name); };
    for (const std::vector<std::string>& names : names_to_write(state, hosts, group)) {
      std::vector<SavedTensor> tensors;
      for (const std::string& name : names)
        tensors.push_back({name, gradient_part(copy), gradients.at(name)});
      snapshot.add(shard_stem(names.front()) + "." + gradient_part(copy), std::move(tensors));
    }
  }
  return snapshot;
}

std::vector<CheckpointShard> Snapshot::described() const {
  std::vector<CheckpointShard> shards;
  for (const File& file : files_) {
    CheckpointShard shard{
        file.name, file.image.bytes().size(), bytes_digest(file.image.bytes()), {}};
    std::map<std::string_view, const SafetensorsPlace*> place_of;
    for (const SafetensorsPlace& place : file.image.places()) place_of[place.name] = &place;
    for (const SavedTensor& saved : file.tensors) {
      const std::string key = key_of(saved);
      const SafetensorsPlace& place = *place_of.at(key);
      shard.tensors.push_back({saved.name,
                               saved.part,
                               place.dtype,
                               place.dims,
                               bytes_digest(file.image.bytes_of(key))});
    }
    std::ranges::sort(shard.tensors, {}, tensor_key);
    shards.push_back(std::move(shard));
  }
  return shards;
}

}  // namespace millrace
