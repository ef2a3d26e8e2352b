// Meeting the other ranks.
#include "module/launched.hpp"

namespace millrace::python {

JoinedRank joined(const HelloFields& fields) {
  return join_launch({.fields = fields});
}

}  // namespace millrace::python
