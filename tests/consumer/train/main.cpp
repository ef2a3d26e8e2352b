// An engine author's first minute: a model trained by one rank and by three gives the same weights.
#include <iostream>
#include <millrace/millrace.hpp>
#include <string>

int main() {
  using namespace millrace;
  const TrainTest data = load_data("digits", 1);
  const ModelSpec model = parse_model("mlp:64-32-32-10");
  const auto hash_with = [&](int ranks) {
    Trainer trainer(model, {.shape = {.ranks = ranks, .micro_batches = 4}}, {.fit = {.epochs = 2}});
    trainer.fit(data.train);
    return trainer.weights_hash();
  };
  const std::string one = hash_with(1);
  const std::string three = hash_with(3);
  std::cout << "one rank " << one << ", three ranks " << three << '\n';
  return one == three ? 0 : 1;
}
