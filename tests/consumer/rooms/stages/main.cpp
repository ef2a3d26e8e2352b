// Takes the component stages alone.
#include <millrace/stages/models.hpp>

int main() {
  using namespace millrace;
  return parse_model("mlp:2-3").layer_count() == 1 ? 0 : 1;
}
