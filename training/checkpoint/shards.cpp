// Cutting the state into files, and copying it there.
#include "training/checkpoint/shards.hpp"

#include <algorithm>
#include <map>

#include "millrace/core/error.hpp"
#include "millrace/training/weights_hash.hpp"

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

CheckpointTensor tensor_of(const TrainingState& state,
                           const std::string& name,
                           const std::string& part) {
  const Tensor& tensor = state.read(name, part);
  return {name, part, tensor.dtype(), tensor.dims(), {}};
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

std::vector<std::vector<std::string>> names_to_write(const TrainingState& state,
                                                     ProcessGroup& group) {
  std::string hosted;
  for (const std::string& name : state.names()) hosted += state.hosts(name) ? '1' : '0';
  const std::vector<std::string> said = group.gather(hosted, Label::Checkpoint);
  std::map<std::string, std::vector<std::size_t>> numbers_of;
  for (std::size_t i = 0; i < state.names().size(); ++i)
    numbers_of[shard_stem(state.names()[i])].push_back(i);
  std::vector<std::vector<std::string>> mine;
  for (const auto& [stem, numbers] : numbers_of) {
    const auto writer = std::ranges::find_if(said, [&](const std::string& hosts) {
      return std::ranges::all_of(numbers, [&](std::size_t i) { return hosts[i] == '1'; });
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

Snapshot::Snapshot(const TrainingState& state, const std::vector<std::vector<std::string>>& names) {
  for (const std::vector<std::string>& of_shard : names)
    for (const bool values : {true, false}) {
      std::vector<SafetensorsPlace> places;
      std::vector<std::pair<std::string, std::string>> tensors;
      for (const std::string& name : of_shard)
        for (const std::string& part : parts_of(state, name, values)) {
          const CheckpointTensor tensor = tensor_of(state, name, part);
          places.push_back({tensor_key(tensor), tensor.dtype, tensor.dims});
          tensors.emplace_back(name, part);
        }
      if (places.empty()) continue;
      files_.push_back(
          {shard_stem(of_shard.front()) + (values ? ".weights" : ".optimizer") + ".safetensors",
           SafetensorsImage(std::move(places)),
           std::move(tensors)});
    }
}

void Snapshot::take(const TrainingState& state) {
  for (File& file : files_)
    for (const auto& [name, part] : file.tensors)
      file.image.fill(tensor_key({name, part, {}, {}, {}}), state.read(name, part));
}

std::vector<CheckpointShard> Snapshot::described() const {
  std::vector<CheckpointShard> shards;
  for (const File& file : files_) {
    CheckpointShard shard{
        file.name, file.image.bytes().size(), bytes_digest(file.image.bytes()), {}};
    std::map<std::string_view, const SafetensorsPlace*> place_of;
    for (const SafetensorsPlace& place : file.image.places()) place_of[place.name] = &place;
    for (const auto& [name, part] : file.tensors) {
      CheckpointTensor tensor{name, part, {}, {}, {}};
      const std::string key = tensor_key(tensor);
      tensor.dtype = place_of.at(key)->dtype;
      tensor.dims = place_of.at(key)->dims;
      tensor.digest = bytes_digest(file.image.bytes_of(key));
      shard.tensors.push_back(std::move(tensor));
    }
    std::ranges::sort(shard.tensors, {}, tensor_key);
    shards.push_back(std::move(shard));
  }
  return shards;
}

}  // namespace millrace
