// Of this room, because it is compiled with the options of all that compute.
#include "millrace/stages/products.hpp"

namespace millrace {

namespace {

constexpr const char* kCompiler =
#if defined(__clang__)
    "clang " __clang_version__;
#elif defined(__GNUC__)
    "gcc " __VERSION__;
#else
    "another compiler";
#endif

constexpr const char* kVectors =
#if defined(__AVX512F__)
    "avx512";
#elif defined(__AVX2__)
    "avx2";
#elif defined(__AVX__)
    "avx";
#elif defined(__ARM_FEATURE_SVE)
        "sve";
#else
        "baseline vectors";
#endif

constexpr bool kFused =
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    true;
#else
    false;
#endif

constexpr bool kFast =
#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__)
    true;
#else
    false;
#endif

}  // namespace

std::string compiled_code() {
  std::string text = std::string(kCompiler) + ", " + kVectors;
  if (kFused) text += ", fma";
  if (kFast) text += ", fast math";
#if defined(__OPTIMIZE__)
  return text;
#else
  return text + ", not optimized";
#endif
}

}  // namespace millrace
