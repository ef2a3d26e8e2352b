// The first program: the digits, learnt by one rank and by four, give the same weights, bit for
// bit.
#include <array>
#include <iostream>
#include <millrace/millrace.hpp>
#include <string>

int main() {
  using namespace millrace;
  const TrainTest data = load_data("digits", /*seed=*/1);
  const ModelSpec model = parse_model("mlp:64-96-96-96-10");
  std::array<std::string, 2> weights;
  for (const int ranks : {1, 4}) {
    Trainer trainer(model, {.schedule = "1f1b", .ranks = ranks, .micro_batches = 8, .epochs = 20});
    trainer.fit(data.train);
    weights[ranks == 4] = trainer.weights_hash();
    const bool learnt = trainer.evaluate(data.test).accuracy() > 0.95;
    std::cout << ranks << " rank(s): " << (learnt ? "learnt" : "not learnt") << '\n';
  }
  std::cout << (weights[0] == weights[1] ? "the same weights\n" : "other weights\n");
}
