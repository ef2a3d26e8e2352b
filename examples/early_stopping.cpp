// Early stopping and an average of the weights by name: a custom loop over mini-batches, an
// evaluation after every epoch, and an exponential moving average that replaces the weights at the
// end.
#include <iostream>
#include <map>
#include <millrace/millrace.hpp>

namespace {

using namespace millrace;

/// The moving average of every parameter, by global name: the same names in any partition.
class WeightAverage {
 public:
  explicit WeightAverage(float decay) : decay_(decay) {}

  void update(Trainer& trainer) {
    const TrainingState& state = trainer.state();
    for (const std::string& name : state.names()) {
      const auto value = state.read(name).as<float>();
      const auto [place, is_new] = average_.try_emplace(name, value.begin(), value.end());
      if (is_new) continue;
      for (std::size_t i = 0; i < value.size(); ++i)
        place->second[i] += (1 - decay_) * (value[i] - place->second[i]);
    }
  }

  void put_in_place(Trainer& trainer) const {
    for (const auto& [name, value] : average_) trainer.state().write(name, value);
  }

 private:
  float decay_;
  std::map<std::string, std::vector<float>> average_;
};

/// Whether the loss has not fallen for `patience` evaluations.
class EarlyStopping {
 public:
  explicit EarlyStopping(int patience) : patience_(patience) {}

  [[nodiscard]] bool enough(double loss) {
    waited_ = loss < best_ ? 0 : waited_ + 1;
    best_ = std::min(best_, loss);
    return waited_ >= patience_;
  }

 private:
  int patience_;
  int waited_ = 0;
  double best_ = 1e300;
};

/// Accuracy of the average over the held-out digits, from a model of `ranks` stages.
double averaged_accuracy(int ranks, int* epochs) {
  const TrainTest data = load_data("digits", /*seed=*/1);
  Trainer trainer(parse_model("mlp:64-48-48-48-10"),
                  {.shape = {.ranks = ranks, .micro_batches = 8}});
  Loader loader(data.train, {.batch_size = 128, .micro_batches = 8, .seed = 1});
  WeightAverage average(0.98F);
  EarlyStopping stopping(/*patience=*/3);
  for (*epochs = 1; *epochs < 200; ++*epochs) {
    for (std::int64_t batch = 0; batch < loader.batches_per_epoch(); ++batch) {
      (void)trainer.step(loader.next());
      average.update(trainer);
    }
    if (stopping.enough(trainer.evaluate(data.test).mean_loss())) break;
  }
  average.put_in_place(trainer);
  return trainer.evaluate(data.test).accuracy();
}

}  // namespace

int main() {
  int epochs_of_one = 0;
  int epochs_of_four = 0;
  const double one = averaged_accuracy(1, &epochs_of_one);
  const double four = averaged_accuracy(4, &epochs_of_four);
  std::cout << "stopped early: " << (epochs_of_one < 199 ? "yes" : "no") << '\n'
            << "accuracy above 95 %: " << (one > 0.95 ? "yes" : "no") << '\n'
            << "four ranks stop at the same epoch with the same accuracy: "
            << (epochs_of_one == epochs_of_four && one == four ? "yes" : "no") << '\n';
}
