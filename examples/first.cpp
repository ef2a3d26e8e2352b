// The first program: the digits, learnt by one rank and by four, give the same weights, bit for
// bit.
#include <cstdio>
#include <millrace/millrace.hpp>

int main() {
  using namespace millrace;
  const TrainTest data = load_data("digits", /*seed=*/1);
  const ModelSpec model = parse_model("mlp:64-96-96-96-10");
  for (const int ranks : {1, 4}) {
    Trainer trainer(model, {.schedule = "1f1b", .ranks = ranks, .micro_batches = 8, .epochs = 20});
    trainer.fit(data.train);
    std::printf("%d rank(s): %lld of %lld right, weights %s\n",
                ranks,
                static_cast<long long>(trainer.evaluate(data.test).loss.correct),
                static_cast<long long>(data.test.size()),
                trainer.weights_hash().c_str());
  }
}
