// Takes the component core alone.
#include <millrace/core/tensor.hpp>

int main() {
  using namespace millrace;
  return Tensor(DType::F32, {2, 3}).rows() == 2 ? 0 : 1;
}
