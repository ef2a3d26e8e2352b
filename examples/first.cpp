// Trains the digits on one rank and on two; the weights have the same bits.
#include <iostream>
#include <millrace/millrace.hpp>

std::string weights(int ranks) {
  millrace::Trainer trainer(
      millrace::parse_model("mlp:64-96-10"), {.shape = {.ranks = ranks}}, {.fit = {.epochs = 20}});
  trainer.fit(millrace::load_data("digits", /*seed=*/1).train);
  return trainer.weights_hash();
}

int main() {  // prints "same weights"
  std::cout << (weights(1) == weights(2) ? "same" : "different") << " weights\n";
}
