// Takes the component training alone.
#include <millrace/training/dataset.hpp>

int main() {
  using namespace millrace;
  return load_data("digits", 1).train.size() > 0 ? 0 : 1;
}
